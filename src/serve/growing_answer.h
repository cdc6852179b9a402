// GrowingAnswer: the answer to one request, as the HTTP server sends it while the model makes its texts.
#pragma once

#include <memory>

#include "serve/http/message.h"
#include "serve/protocol/answer.h"

namespace switchyard::serve {

class GrowingAnswer final : public http::Growing {
 public:
  // `headers` are sent besides those that every answer has.
  GrowingAnswer(std::unique_ptr<ProtocolAnswer> answer, std::shared_ptr<Pieces> pieces,
                http::Headers headers = {});

  bool is_stream() const override;
  http::Response head() const override;
  void on_more(std::function<void()> wake) override;
  Part take() override;
  void abandon() override;

 private:
  const std::unique_ptr<ProtocolAnswer> answer_;
  const std::shared_ptr<Pieces> pieces_;
  const http::Headers headers_;
  bool begun_ = false;
};

}  // namespace switchyard::serve
