#include "parallel/mesh.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "parallel/sharding.h"

namespace switchyard {
namespace {

using Names = std::vector<std::string>;

TEST(Mesh, RanksAreRowMajorOverTheAxes) {
  const Mesh mesh({{"data", 2}, {"stage", 1}, {"fsdp", 3}, {"expert", 4}});
  EXPECT_EQ(mesh.size(), 24);
  EXPECT_EQ(mesh.to_string(), "data=2 fsdp=3 expert=4");
  for (int rank = 0; rank < 24; ++rank) {
    EXPECT_EQ(mesh.coordinate(rank, "data"), rank / 12);
    EXPECT_EQ(mesh.coordinate(rank, "fsdp"), rank / 4 % 3);
    EXPECT_EQ(mesh.coordinate(rank, "expert"), rank % 4);
    EXPECT_EQ(mesh.coordinate(rank, "stage"), 0);
    EXPECT_EQ(mesh.coordinate(rank, "no such axis"), 0);
  }
  EXPECT_EQ(mesh.axis_size("no such axis"), 1);
  EXPECT_EQ(mesh.product(Axes{"data", "expert", "no such axis"}), 8);
}

TEST(Mesh, WithoutAxesThereIsOneRank) {
  const Mesh mesh;
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.to_string(), "one rank");
  EXPECT_EQ(mesh.group(0, Axes{"expert"}), std::vector<int>{0});
}

TEST(Mesh, GroupsOrderTheFirstAxisSlowest) {
  const Mesh mesh({{"data", 2}, {"fsdp", 2}, {"expert", 2}});
  EXPECT_EQ(mesh.group(5, Axes{"fsdp"}), (std::vector<int>{5, 7}));
  EXPECT_EQ(mesh.group(5, Axes{"data", "expert"}), (std::vector<int>{0, 1, 4, 5}));
  EXPECT_EQ(mesh.group(5, Axes{"expert", "data"}), (std::vector<int>{0, 4, 1, 5}));
  EXPECT_EQ(mesh.index_along(5, Axes{"data", "expert"}), 3);
  EXPECT_EQ(mesh.index_along(1, Axes{"expert", "data"}), 2);
}

TEST(Mesh, GroupAndIndexAgreeForEveryRank) {
  const Mesh mesh({{"a", 2}, {"b", 3}, {"c", 1}, {"d", 4}});
  for (const Axes& axes : {Axes{}, Axes{"a"}, Axes{"d", "a"}, Axes{"b", "c"}, Axes{"d", "b", "a"}}) {
    for (int rank = 0; rank < mesh.size(); ++rank) {
      const std::vector<int> group = mesh.group(rank, axes);
      EXPECT_EQ(static_cast<int>(group.size()), mesh.product(axes));
      EXPECT_EQ(group[static_cast<std::size_t>(mesh.index_along(rank, axes))], rank);
      for (const int other : group) EXPECT_EQ(mesh.group(other, axes), group);
    }
  }
}

const Names kAxes{"data", "stage", "fsdp", "expert", "tensor"};

// The reference's defaults, overridden by a user's values.
struct Given {
  const char* axis;
  std::int64_t dcn = 1;
  std::int64_t ici = 1;
  bool dcn_given = false;
  bool ici_given = false;
};
std::vector<ParallelismSizes> sizes(const std::vector<Given>& given) {
  std::vector<ParallelismSizes> result;
  for (const std::string& axis : kAxes) {
    ParallelismSizes size{axis, axis == "data" ? -1 : 1, axis == "fsdp" ? -1 : 1, false, false};
    for (const Given& g : given) {
      if (axis != g.axis) continue;
      if (g.dcn_given) size.dcn = g.dcn;
      if (g.ici_given) size.ici = g.ici;
      size.dcn_given = g.dcn_given;
      size.ici_given = g.ici_given;
    }
    result.push_back(size);
  }
  return result;
}
Given ici(const char* axis, std::int64_t size) {
  return {axis, 1, size, false, true};
}
Given dcn(const char* axis, std::int64_t size) {
  return {axis, size, 1, true, false};
}

std::string mesh_of(const std::vector<Given>& given, std::int64_t ranks, std::int64_t slices = -1) {
  return build_mesh(kAxes, sizes(given), ranks, slices).to_string();
}

std::string error_of(const std::vector<Given>& given, std::int64_t ranks, std::int64_t slices = -1) {
  try {
    return "no error: " + mesh_of(given, ranks, slices);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    return error.what();
  }
}

TEST(BuildMesh, TheDefaultIsFsdpOverAllRanks) {
  EXPECT_EQ(mesh_of({}, 8), "fsdp=8");
  EXPECT_EQ(mesh_of({}, 1), "one rank");
  EXPECT_EQ(mesh_of({ici("expert", 4)}, 8), "fsdp=2 expert=4");
}

TEST(BuildMesh, AGivenRestReplacesTheDefaultRest) {
  EXPECT_EQ(mesh_of({ici("expert", -1)}, 8), "expert=8");
  EXPECT_EQ(mesh_of({ici("expert", -1), ici("fsdp", 2)}, 8), "fsdp=2 expert=4");
  EXPECT_EQ(mesh_of({ici("fsdp", -1), ici("tensor", 2)}, 8), "fsdp=4 tensor=2");
  EXPECT_EQ(mesh_of({dcn("fsdp", -1)}, 8, 2), "fsdp=8");
  EXPECT_EQ(mesh_of({dcn("expert", -1)}, 8, 2), "fsdp=4 expert=2");
}

TEST(BuildMesh, SlicesMultiplyIntoTheirAxis) {
  EXPECT_EQ(mesh_of({}, 8, 2), "data=2 fsdp=4");
  EXPECT_EQ(mesh_of({dcn("data", 2)}, 8), "data=2 fsdp=4");
  EXPECT_EQ(mesh_of({dcn("fsdp", 2)}, 8), "fsdp=8");
  EXPECT_EQ(mesh_of({dcn("data", -1)}, 8), "fsdp=8");
  EXPECT_EQ(mesh_of({dcn("fsdp", 2), ici("expert", -1)}, 8, 4), "data=2 fsdp=2 expert=2");
}

TEST(BuildMesh, ErrorsNameKeysProductAndRanks) {
  EXPECT_EQ(error_of({ici("expert", 3)}, 8),
            "[mesh] expected the product of ici_fsdp_parallelism=-1, ici_expert_parallelism=3 to divide the "
            "8 ranks, "
            "got 3; change a size, or set ranks=3");
  EXPECT_EQ(
      error_of({ici("expert", 2), ici("fsdp", 2)}, 8),
      "[mesh] expected ici_fsdp_parallelism=2, ici_expert_parallelism=2 to multiply to the 8 ranks, got 4; "
      "change a size, make one -1, or set ranks=4");
  EXPECT_EQ(
      error_of({ici("expert", -1), ici("fsdp", -1)}, 8),
      "[mesh] expected at most one -1 among the ici_*_parallelism keys, got ici_fsdp_parallelism=-1 and "
      "ici_expert_parallelism=-1; give one a number");
  EXPECT_EQ(error_of({ici("tensor", 0)}, 8),
            "[mesh] expected ici_tensor_parallelism to be positive or -1 (the rest), got 0");
  EXPECT_EQ(error_of({ici("stage", -3)}, 8),
            "[mesh] expected ici_pipeline_parallelism to be positive or -1 (the rest), got -3");
  EXPECT_NE(error_of({dcn("data", 3)}, 8)
                .find("expected 3 slices (dcn_data_parallelism=3; num_slices=-1) to divide 8"),
            std::string::npos);
  EXPECT_NE(
      error_of({dcn("data", 4)}, 8, 2).find("expected dcn_data_parallelism=4 to multiply to the 2 slices"),
      std::string::npos);
  EXPECT_NE(error_of({ici("expert", 5)}, 8, 2).find("the 4 ranks of each of 2 slices"), std::string::npos);
  EXPECT_NE(error_of({}, 8, 0).find("num_slices"), std::string::npos);
  EXPECT_NE(error_of({}, 0).find("ranks to be positive"), std::string::npos);
  EXPECT_NE(
      error_of({ici("expert", std::int64_t{1} << 62), ici("tensor", 4)}, 8).find("to divide the 8 ranks"),
      std::string::npos)
      << "sizes too large for an integer";
}

TEST(BuildMesh, AxesOutsideTheMeshMustBeOne) {
  const Names axes{"fsdp"};
  EXPECT_EQ(build_mesh(axes, sizes({}), 4, -1).to_string(), "fsdp=4");
  EXPECT_EQ(build_mesh(axes, sizes({dcn("data", -1)}), 4, -1).to_string(), "fsdp=4");
  try {
    build_mesh(axes, sizes({ici("expert", 2)}), 4, -1);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(
        error.what(),
        "[mesh] expected ici_expert_parallelism=1 because mesh_axes has no axis 'expert', got 2; the axes "
        "are fsdp");
  }
}

TEST(BuildMesh, AListOfAxesHoldsAllThatAreLarger) {
  std::vector<std::string> names;
  std::vector<ParallelismSizes> given;
  for (int i = 0; i < 16; ++i) {
    names.push_back("x" + std::to_string(i));
    given.push_back({names.back(), 1, 2, false, true});
  }
  try {
    build_mesh(names, given, 1 << 16, 1);
    ADD_FAILURE() << "16 axes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_STREQ(error.what(), "[mesh] expected at most 15 axes larger than 1, got 16");
  }
  names.pop_back(), given.pop_back();
  const Mesh mesh = build_mesh(names, given, 1 << 15, 1);
  EXPECT_EQ(dual(mesh, Sharding{}).partial.size(), 15u);
}

TEST(Axis, ANameIsOneNumber) {
  EXPECT_EQ(Axis("expert"), Axis(std::string("expert")));
  EXPECT_NE(Axis("expert"), Axis("exper"));
  EXPECT_EQ(Axis("expert").name(), "expert");
  EXPECT_EQ(Axis("").name(), Axis().name());
  EXPECT_EQ(joined({"data", "fsdp"}), "data+fsdp");
  EXPECT_EQ(joined({}), "");
}

TEST(Sharding, PrintsDimsAndPartial) {
  EXPECT_EQ(to_string(Sharding{{{"data", "fsdp"}, {}, {"tensor"}}, {"expert"}}),
            "[data+fsdp, -, tensor] partial(expert)");
  EXPECT_EQ(to_string(replicated(2)), "[-, -]");
}

TEST(Sharding, BlocksTileTheTensor) {
  const Mesh mesh({{"data", 2}, {"fsdp", 3}, {"tensor", 2}});
  const Shape global{12, 4};
  const Sharding sharding{{{"fsdp", "data"}, {"tensor"}}, {}};
  EXPECT_EQ(local_shape(mesh, global, sharding), (Shape{2, 2}));
  std::set<Shape> offsets;
  for (int rank = 0; rank < mesh.size(); ++rank) {
    const Shape offset = local_offset(mesh, rank, global, sharding);
    EXPECT_EQ(offset[0], 2 * (mesh.coordinate(rank, "fsdp") * 2 + mesh.coordinate(rank, "data")));
    EXPECT_EQ(offset[1], 2 * mesh.coordinate(rank, "tensor"));
    offsets.insert(offset);
  }
  EXPECT_EQ(offsets.size(), 12u);
}

TEST(Sharding, DualExchangesWholeAndPartial) {
  const Mesh mesh({{"data", 2}, {"stage", 1}, {"fsdp", 2}, {"tensor", 2}, {"expert", 2}});
  const Sharding sharding{{{"fsdp"}, {}}, {"tensor"}};
  EXPECT_EQ(to_string(dual(mesh, sharding)), "[fsdp, -] partial(data+expert)");
  EXPECT_EQ(dual(mesh, dual(mesh, sharding)), sharding);
}

}  // namespace
}  // namespace switchyard
