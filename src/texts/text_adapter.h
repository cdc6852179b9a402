// TextAdapter: an adapter that texts may ask for, where a model has several side by side.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::texts {

struct TextAdapter {
  std::string name;
  std::int32_t number = 0;   // its place in the model (models/adapter.h, Adapter::count)
  std::int64_t version = 0;  // unlike that of every other adapter that was ever loaded
  std::string hash = {};     // of its files; empty where nobody asks
};

}  // namespace switchyard::texts
