// The model families, by the name of each one's ModelFamily. Included where SWITCHYARD_FAMILY says what is to
// become of them: the one place that lists them. Those that share a DecoderBlock are asked in this order
// which of them a model is written as.
SWITCHYARD_FAMILY(kLlama)
SWITCHYARD_FAMILY(kMistral)
SWITCHYARD_FAMILY(kMixtral)
SWITCHYARD_FAMILY(kDeepseekV2)
SWITCHYARD_FAMILY(kDeepseekV3)
SWITCHYARD_FAMILY(kKimiK2)
SWITCHYARD_FAMILY(kQwen3)
SWITCHYARD_FAMILY(kQwen3Moe)
SWITCHYARD_FAMILY(kQwen3VlMoe)
SWITCHYARD_FAMILY(kGlm4Moe)
SWITCHYARD_FAMILY(kGlm4MoeLite)
SWITCHYARD_FAMILY(kMinimaxM2)
SWITCHYARD_FAMILY(kGptOss)
SWITCHYARD_FAMILY(kOlmoe)
SWITCHYARD_FAMILY(kLlama4)
