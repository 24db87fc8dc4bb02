"""Small random checkpoints in the published file layout, one for each variant that `tiny` is not.

Every dimension differs from tiny's, so a constant taken from tiny instead of from config.json shows. No tensor is
left at a constant initial value (layer scales, codebook tables and norms included): a path that is multiplied by
zero or by one would pass whatever it computed.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file

from parity_reference import load  # noqa: F401  (registers the stand-ins before the package is imported)
from qwen_tts.core.models.configuration_qwen3_tts import Qwen3TTSConfig
from qwen_tts.core.models.modeling_qwen3_tts import Qwen3TTSForConditionalGeneration
from qwen_tts.core.tokenizer_12hz.configuration_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Config
from qwen_tts.core.tokenizer_12hz.modeling_qwen3_tts_tokenizer_v2 import Qwen3TTSTokenizerV2Model

CODEBOOK = 64
GROUPS = 16
LANGUAGES = {"english": 3, "chinese": 5, "beijing_dialect": 6, "sichuan_dialect": 7}

VARIANTS = {
    # CustomVoice as the published 0.6B: no projection in front of the code predictor, instructions dropped.
    "custom_voice_identity": dict(
        seed=11, kind="custom_voice", size="0b6", hidden=64, heads=4, kv_heads=2, head_dim=16, layers=2, ff=96,
        text_hidden=48, predictor_hidden=64, predictor_heads=2, predictor_kv_heads=1, predictor_layers=2,
        rope_theta=1000000, predictor_rope_theta=500000,
    ),
    # CustomVoice as the published 1.7B: a Linear in front of the code predictor, instructions used.
    "custom_voice_linear": dict(
        seed=12, kind="custom_voice", size="1b7", hidden=48, heads=3, kv_heads=1, head_dim=32, layers=3, ff=80,
        text_hidden=40, predictor_hidden=32, predictor_heads=4, predictor_kv_heads=2, predictor_layers=1,
        rope_theta=1000000, predictor_rope_theta=10000,
    ),
    # VoiceDesign: no speaker position at all, the voice is described in words.
    "voice_design": dict(
        seed=13, kind="voice_design", size="1b7", hidden=40, heads=2, kv_heads=2, head_dim=24, layers=2, ff=72,
        text_hidden=56, predictor_hidden=48, predictor_heads=3, predictor_kv_heads=3, predictor_layers=2,
        rope_theta=10000, predictor_rope_theta=1000000,
    ),
    # Base whose encoder has more codebooks (20) than are used (16), as the published one does (32 and 16), and an x-vector as wide as the talker.
    "base": dict(
        seed=14, kind="base", size="0b6", hidden=56, heads=2, kv_heads=1, head_dim=32, layers=2, ff=64,
        text_hidden=32, predictor_hidden=40, predictor_heads=2, predictor_kv_heads=2, predictor_layers=2,
        rope_theta=1000000, predictor_rope_theta=1000000,
    ),
}


def mrope_sections(head_dim):
    third = head_dim // 6
    return [head_dim // 2 - 2 * third, third, third]


def model_config(v, tiny):
    base = CODEBOOK + 16  # speakers and languages live in 0..16 above the codebook, special ids after them
    special = {
        name: base + i
        for i, name in enumerate(
            ["codec_pad_id", "codec_bos_id", "codec_eos_token_id", "codec_think_id", "codec_nothink_id",
             "codec_think_bos_id", "codec_think_eos_id"]
        )
    }
    custom = v["kind"] == "custom_voice"
    speakers = {"ada": CODEBOOK + 8, "bo": CODEBOOK + 9, "cy": CODEBOOK + 10} if custom else {}
    dialects = {"ada": False, "bo": "beijing_dialect", "cy": "sichuan_dialect"} if custom else {}
    rope = {"interleaved": True, "mrope_section": mrope_sections(v["head_dim"]), "rope_type": "default", "type": "default"}
    shared = dict(hidden_act="silu", max_position_embeddings=1024, initializer_range=0.02, use_cache=True,
                  tie_word_embeddings=False, attention_bias=False, use_sliding_window=False, sliding_window=None,
                  attention_dropout=0.0, num_code_groups=GROUPS)
    return {
        "architectures": ["Qwen3TTSForConditionalGeneration"],
        "model_type": "qwen3_tts",
        "tokenizer_type": "qwen3_tts_tokenizer_12hz",
        "tts_model_size": v["size"],
        "tts_model_type": v["kind"],
        **{k: tiny[k] for k in tiny if k.endswith("_token_id")},
        "torch_dtype": "bfloat16",
        "transformers_version": "4.57.3",
        "speaker_encoder_config": {
            "mel_dim": 128, "enc_dim": v["hidden"], "enc_channels": [32, 32, 32, 32, 96],
            "enc_kernel_sizes": [5, 3, 3, 3, 1], "enc_dilations": [1, 2, 3, 4, 1], "enc_attention_channels": 12,
            "enc_res2net_scale": 8, "enc_se_channels": 20, "sample_rate": 24000,
        },
        "talker_config": {
            **shared, "vocab_size": CODEBOOK + 1024, "hidden_size": v["hidden"], "intermediate_size": v["ff"],
            "num_hidden_layers": v["layers"], "num_attention_heads": v["heads"],
            "num_key_value_heads": v["kv_heads"], "head_dim": v["head_dim"], "rms_norm_eps": 1e-6,
            "rope_theta": v["rope_theta"], "rope_scaling": rope, "text_hidden_size": v["text_hidden"],
            "text_vocab_size": tiny["talker_config"]["text_vocab_size"], **special,
            "codec_language_id": {name: CODEBOOK + i for name, i in LANGUAGES.items()},
            "spk_id": speakers, "spk_is_dialect": dialects, "model_type": "qwen3_tts_talker",
            "code_predictor_config": {
                **shared, "vocab_size": CODEBOOK, "hidden_size": v["predictor_hidden"], "intermediate_size": 56,
                "num_hidden_layers": v["predictor_layers"], "num_attention_heads": v["predictor_heads"],
                "num_key_value_heads": v["predictor_kv_heads"], "head_dim": 16, "rms_norm_eps": 1e-5,
                "rope_theta": v["predictor_rope_theta"], "rope_scaling": None, "max_window_layers": 28,
                "model_type": "qwen3_tts_talker_code_predictor",
            },
        },
    }


def codec_config():
    return {
        "architectures": ["Qwen3TTSTokenizerV2Model"],
        "model_type": "qwen3_tts_tokenizer_12hz",
        "dtype": "bfloat16",
        "transformers_version": "4.57.3",
        "encoder_config": {
            "audio_channels": 1, "sampling_rate": 24000, "frame_rate": 12.5, "hidden_size": 32, "num_filters": 4,
            "num_residual_layers": 1, "upsampling_ratios": [8, 6, 5, 4], "kernel_size": 7, "last_kernel_size": 3,
            "residual_kernel_size": 3, "dilation_growth_rate": 2, "use_causal_conv": True, "pad_mode": "constant",
            "compress": 2, "codebook_size": CODEBOOK, "codebook_dim": 16, "num_quantizers": 20,
            "use_conv_shortcut": False, "vector_quantization_hidden_dimension": 16, "num_semantic_quantizers": 1,
            "upsample_groups": 32, "num_hidden_layers": 2, "intermediate_size": 48, "num_attention_heads": 2,
            "num_key_value_heads": 2, "head_dim": 16, "hidden_act": "gelu", "max_position_embeddings": 8000,
            "norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": 250, "attention_bias": False,
            "layer_scale_initial_scale": 0.01, "use_cache": False, "use_streaming": False, "model_type": "mimi",
        },
        "decoder_config": {
            "codebook_size": CODEBOOK, "codebook_dim": 32, "hidden_size": 24, "latent_dim": 40,
            "max_position_embeddings": 8000, "rope_theta": 10000, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "attention_bias": False, "sliding_window": 10, "intermediate_size": 36,
            "hidden_act": "silu", "layer_scale_initial_scale": 0.01, "rms_norm_eps": 1e-5, "num_hidden_layers": 2,
            "num_quantizers": GROUPS, "num_semantic_quantizers": 1, "upsample_rates": [8, 5, 4, 3],
            "upsampling_ratios": [2, 2], "decoder_dim": 32, "attention_dropout": 0.0,
        },
        "encoder_valid_num_quantizers": GROUPS, "input_sample_rate": 24000, "output_sample_rate": 24000,
        "decode_upsample_rate": 1920, "encode_downsample_rate": 1920,
    }


def randomise(state, generator):
    """Replaces every tensor by random values of a size that keeps activations near one."""

    def normal(shape, scale):
        return torch.randn(shape, generator=generator) * scale

    out = {}
    for name, tensor in sorted(state.items()):
        shape, leaf = tensor.shape, name.rsplit(".", 1)[-1]
        if leaf in ("initialized",):
            out[name] = tensor
        elif leaf == "cluster_usage":
            usage = torch.rand(shape, generator=generator) * 1.5 + 0.5
            usage[3] = 0.0  # an entry never used: the floor of the division must hold
            out[name] = usage
        elif leaf in ("embedding_sum", "embed_sum"):
            table = normal(shape, 1.0)
            table[3] *= 1e-5
            out[name] = table
        elif leaf in ("alpha", "beta"):
            out[name] = normal(shape, 0.3)
        elif leaf in ("scale", "gamma"):
            out[name] = normal(shape, 0.2) + 0.5
        elif leaf == "bias":
            out[name] = normal(shape, 0.1)
        elif "norm" in name and tensor.ndim == 1:
            out[name] = normal(shape, 0.2) + 1.0
        elif "embedding" in name:
            out[name] = normal(shape, 0.7)
        else:
            fan_in = tensor[0].numel() if tensor.ndim > 1 else tensor.numel()
            gain = 2.5 if "head" in name else 0.6 if "conv2.conv" in name else 1.2
            out[name] = normal(shape, gain / fan_in**0.5)
    return out


def write_checkpoint(folder, name, tiny_folder):
    """Writes the checkpoint of variant `name` into `folder` (config.json, model.safetensors, speech_tokenizer/...)."""
    v, folder, tiny_folder = VARIANTS[name], Path(folder), Path(tiny_folder)
    (folder / "speech_tokenizer").mkdir(parents=True, exist_ok=True)
    tiny = json.loads((tiny_folder / "config.json").read_text())
    config = model_config(v, tiny)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    generation = dict(do_sample=True, top_k=50, top_p=1.0, temperature=0.9, repetition_penalty=1.05,
                      subtalker_dosample=True, subtalker_top_k=50, subtalker_top_p=1.0, subtalker_temperature=0.9,
                      max_new_tokens=512)
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=1) + "\n")
    # tokenizer.json is left out: these checkpoints are laid out as the published ones are.
    for file in ("vocab.json", "merges.txt", "tokenizer_config.json", "preprocessor_config.json"):
        shutil.copyfile(tiny_folder / file, folder / file)
    shutil.copyfile(tiny_folder / "speech_tokenizer/preprocessor_config.json",
                    folder / "speech_tokenizer/preprocessor_config.json")
    generator = torch.Generator().manual_seed(v["seed"])
    model = Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**json.loads(json.dumps(config))))
    save(randomise(model.state_dict(), generator), folder / "model.safetensors")

    codec = codec_config()
    (folder / "speech_tokenizer/config.json").write_text(json.dumps(codec, indent=1) + "\n")
    codec_model = Qwen3TTSTokenizerV2Model(Qwen3TTSTokenizerV2Config(**json.loads(json.dumps(codec))))
    state = randomise(codec_model.state_dict(), generator)
    codec_model.load_state_dict(state)
    tame_output(codec_model.eval(), state)
    save(state, folder / "speech_tokenizer/model.safetensors")


@torch.inference_mode()
def tame_output(codec_model, state):
    """Scales the last convolution so that the wave has an RMS of 0.2: clamped samples would compare nothing."""
    heard = []
    last = codec_model.decoder.decoder[-1]
    hook = last.register_forward_hook(lambda _module, _args, output: heard.append(output))
    codes = torch.randint(0, CODEBOOK, (1, GROUPS, 20), generator=torch.Generator().manual_seed(1))
    codec_model.decoder(codes)
    hook.remove()
    for leaf in ("weight", "bias"):
        state[f"decoder.decoder.6.conv.{leaf}"] *= 0.2 / heard[0].std()


def save(state, path):
    save_file({k: t.to(torch.bfloat16).contiguous() for k, t in state.items()}, str(path), metadata={"format": "pt"})
