// Numbers of an update that no two terms share, for the cases and the tests of optimizers.
#pragma once

#include "kernels/optimizer/update_numbers.h"

namespace switchyard {

constexpr UpdateNumbers kExampleNumbers{.adam = {.grad_scale = 0.7f,
                                                 .mu_decay = 0.9f,
                                                 .mu_gain = 0.1f,
                                                 .nu_decay = 0.95f,
                                                 .nu_gain = 0.05f,
                                                 .mu_correction = 1.9f,
                                                 .nu_correction = 3.1f,
                                                 .grad_share = 0.3f,
                                                 .eps = 1e-8f,
                                                 .eps_root = 1e-12f,
                                                 .learning_rate = 0.01f,
                                                 .weight_decay = 0.1f},
                                        .momentum = {0.95f, 0.05f, 1.3f, 0.4f},
                                        .learning_rate = 0.01};

}  // namespace switchyard
