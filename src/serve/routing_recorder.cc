#include "serve/routing_recorder.h"

#include <utility>

#include "routing/routing_blocks.h"

namespace switchyard::serve {

texts::OnFinished routing_recorder(AppendFile* file, const Generator& generator) {
  return [file, &generator, routed = routed_layers(generator.model()), recorded = std::int64_t{0}](
             const texts::FinishedText& text, texts::Piece& last) mutable {
    const bool ended = text.how == texts::Finish::stop || text.how == texts::Finish::length;
    // A text whose time was over before it was read has no tokens to record.
    if (!ended || text.cached.empty() || !(file != nullptr || text.request.returns_routing)) return;
    const RoutingSource source{RoutingSource::Kind::serve, recorded++,
                               static_cast<std::int64_t>(text.request.choice)};
    std::string record =
        routing_record(routed, source, text.cached, generator.routing(text.slot, std::ssize(text.cached)));
    if (file != nullptr) file->append(record);
    if (text.request.returns_routing) last.routing = std::move(record);
  };
}

}  // namespace switchyard::serve
