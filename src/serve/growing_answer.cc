#include "serve/growing_answer.h"

namespace switchyard::serve {

GrowingAnswer::GrowingAnswer(std::unique_ptr<ProtocolAnswer> answer, std::shared_ptr<Pieces> pieces,
                             http::Headers headers)
    : answer_(std::move(answer)), pieces_(std::move(pieces)), headers_(std::move(headers)) {}

bool GrowingAnswer::is_stream() const {
  return answer_->is_stream();
}

http::Response GrowingAnswer::head() const {
  http::Response response;
  response.headers = headers_;
  response.status = answer_->status();
  if (!is_stream()) return response;
  response.content_type = "text/event-stream";
  response.headers.push_back({"Cache-Control", "no-cache"});
  return response;
}

void GrowingAnswer::on_more(std::function<void()> wake) {
  pieces_->on_added(std::move(wake));
}

GrowingAnswer::Part GrowingAnswer::take() {
  Part part;
  if (!begun_) part.texts.push_back(answer_->begin());
  begun_ = true;
  for (const Piece& piece : pieces_->take(0)) part.texts.push_back(answer_->add(piece));
  if (answer_->is_abandoned()) {
    part.state = State::broken;
  } else if (answer_->is_finished()) {
    part.texts.push_back(answer_->end());
    part.state = State::ended;
  }
  return part;
}

void GrowingAnswer::abandon() {
  pieces_->abandon();
}

}  // namespace switchyard::serve
