"""Makes the parity cases: what the reference package does, tensor by tensor. README.md describes the files.

    python make_cases.py --tiny ../../config/models/tiny --committed ../golden/parity --full ../../target/parity

Both folders get the same cases under the same names. The committed one holds the rows that a test needs to find a
difference and to place it; the full one holds every row.
"""

import argparse
import json
import platform
import re
import wave
from pathlib import Path

import numpy
import torch
import transformers
from safetensors.torch import load_file, save_file

import random_checkpoints
from parity_reference import load
from recording import Recorder, gap, probabilities

GREEDY = dict(do_sample=False, subtalker_dosample=False, repetition_penalty=1.0, max_new_tokens=240)
SAMPLES_PER_FRAME = 1920
# Below this gap between the best and the second-best score a correct second implementation might choose otherwise.
SAFE_MARGIN = 1e-4

SHORT = {
    "clara": "Leave the lamp on tonight.",
    "marcus": "We counted thirty boats.",
    "nora": "Is the blue door open?",
    "june": "Tea is ready in the garden.",
}
LONG = {
    "clara": "After the rain stopped, the children ran down to the harbor to look at the fishing boats, and an old "
    "sailor told them how he had once crossed the bay in the middle of winter with nothing but a small sail "
    "and a bag of apples.",
    "june": "My sister keeps a long list of every bird she has seen from the kitchen window, and on quiet mornings she "
    "reads it aloud from the first page to the last, adding a little story for each of the twenty seven names.",
}
CLONED = {
    "clara": "The bakery opens at seven.",
    "marcus": "The second bell was never heard.",
    "nora": "Bring your coat, it may snow tonight.",
    "june": "Her letter came from the north.",
}
CLONED_LONG = (
    "When the ferry finally turned around the point, everyone on the pier began to wave, because they had been waiting "
    "there since noon and the evening was getting cold."
)


class Cases:
    """The cases made so far; with `only`, just those whose name it matches are made and the others stay as they are."""

    def __init__(self, committed, full, only=None):
        self.folders = {"committed": Path(committed), "full": Path(full)}
        self.only = re.compile(only) if only else None
        self.entries = {}
        for folder in self.folders.values():
            folder.mkdir(parents=True, exist_ok=True)
            if not only:
                for old in folder.glob("*.safetensors"):
                    if not old.name.startswith("tokenizer"):
                        old.unlink()
        manifest = self.folders["full"] / "manifest.json"
        if only and manifest.is_file():
            self.entries = {e["name"]: e for e in json.loads(manifest.read_text())["cases"]}

    def wants(self, name):
        return self.only is None or self.only.search(name) is not None

    def add(self, name, kind, tensors, **facts):
        """Writes `tensors` whole and thinned, and notes the case in the manifest."""
        self.entries[name] = {"name": name, "kind": kind, "file": f"{name}.safetensors", **facts}
        write(self.folders["full"] / f"{name}.safetensors", tensors)
        write(self.folders["committed"] / f"{name}.safetensors", thinned(self.entries[name], tensors))
        print(f"{name}: {facts}", flush=True)
        self.write_manifests()

    def thin_again(self):
        """Writes the committed files anew from the full ones, after a change of `thinned`."""
        for name, entry in self.entries.items():
            full = load_file(str(self.folders["full"] / f"{name}.safetensors"))
            write(self.folders["committed"] / f"{name}.safetensors", thinned(entry, full))
        self.write_manifests()

    def write_manifests(self):
        for which, folder in self.folders.items():
            manifest = {
                "dtype": "float32",
                "attention": "eager",
                "made_by": {"qwen-tts": "0.1.1", "transformers": transformers.__version__, "torch": torch.__version__,
                            "python": platform.python_version()},
                "rows": which,
                "safe_margin": SAFE_MARGIN,
                "cases": list(self.entries.values()),
            }
            (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")


def write(path, tensors):
    save_file({k: t.contiguous() for k, t in tensors.items()}, str(path))
    path.chmod(0o644)  # save_file makes its files private


def rows(tensors, name, kept):
    """Keeps rows `kept` of tensor `name` and says which in `name.frames`."""
    if name not in tensors:
        return
    kept = sorted({k for k in kept if 0 <= k < tensors[name].shape[0]})
    tensors[f"{name}.frames"] = torch.tensor(kept, dtype=torch.int32)
    tensors[name] = tensors[name][kept]


# The prompts whose every position is committed: each layout with codes of a reference, one of them outlasting them.
WHOLE_PROMPTS = ("icl_clara_nonstreaming", "icl_june_streaming", "icl_long_streaming")


def thinned(case, full):
    """The committed rows of a case: the ends, the borders where something changes, and a few between."""
    out, kind, tiny = dict(full), case["kind"], case.get("checkpoint") == "tiny"
    if kind == "speech":
        frames = case["frames"]
        rows(out, "hidden", [0, 1, *range(7, frames, 8), frames - 1])
        rows(out, "logits", [0])
        rows(out, "pcm", [0, 71, 72, 73, frames - 1] if frames > 73 else [frames // 2, frames - 1])
        positions = full["prefill.hidden"].shape[0]
        rows(out, "prefill.hidden", [0, positions // 2, positions - 1])
        if tiny and not case["name"].startswith(("short", "icl_clara")):
            out.pop("cp.logits")
        rows(out, "cp.logits", [1])
        if tiny and case["name"] not in WHOLE_PROMPTS:
            out.pop("prefill.inputs_embeds")
    elif kind == "distribution":
        for part in ("logits", "probs"):
            rows(out, part, [0, 1, 2, case["frames"] - 1])
        for part in ("cp.logits", "cp.probs"):
            rows(out, part, [1] if tiny else [1, case["frames"] - 1])
    elif kind == "encoder":
        for part, step in (("conv", 8), ("transformed", 8), ("features", 4), ("mel", 16)):
            if part in out:
                last = out[part].shape[0] - 1
                rows(out, part, [*range(0, last, step), last])
    elif kind == "codec":
        frames, window = case["frames"], case["window"]
        rows(out, "latent", [0, 1, *range(7, frames, 8), window - 1, window, window + 1, frames - 1])
        rows(out, "conv_in", [0, 4 * window, 4 * frames - 1])
        rows(out, "pcm", [0, window - 1, window, frames - 1])
    return out


def spoken(recorder, speak, **kwargs):
    """Runs one greedy request and returns its tensors and the facts for the manifest."""
    (waves, rate) = speak(**{**GREEDY, **kwargs})
    tensors, ended = recorder.take()
    for name in ("scores", "cp.scores"):
        tensors.pop(name)
    frames = tensors["codes"].shape[0]
    pcm = torch.from_numpy(waves[0])
    # The package cuts the reference's part off by a quotient of floats, now and then one sample early.
    extra = pcm.shape[0] - frames * SAMPLES_PER_FRAME
    assert rate == 24000 and extra in (0, 1), (rate, extra)
    tensors["pcm"] = pcm[extra:].reshape(frames, SAMPLES_PER_FRAME)
    tensors["pcm.rms"] = tensors["pcm"].pow(2).mean(dim=1).sqrt()
    margin = float(tensors["codes.margin"].min())
    return tensors, dict(frames=frames, stopped_by_eos=ended, smallest_margin=round(margin, 6), extra_samples=extra)


def tiny_speech(cases, wrapper, tiny):
    voices = json.loads((tiny / "voices/voices.json").read_text())["voices"]
    recorder = Recorder(wrapper)

    def clone(name, text, voice, layout, icl=False, language="English", **options):
        if not cases.wants(name):
            return
        prompt = wrapper.create_voice_clone_prompt(
            ref_audio=str(tiny / "voices" / voices[voice]["file"]), ref_text=voices[voice]["text"],
            x_vector_only_mode=not icl)
        recorder.clear()
        tensors, facts = spoken(
            recorder, wrapper.generate_voice_clone, text=text, language=language, voice_clone_prompt=prompt,
            non_streaming_mode=layout == "nonstreaming", **options)
        tensors["speaker_embedding"] = prompt[0].ref_spk_embedding.clone()
        if icl:
            tensors["ref_codes"] = prompt[0].ref_code.to(torch.int32)
        else:
            tensors.pop("ref_ids", None)  # tokenised by the package, unused without the reference's codes
        cases.add(name, "speech", tensors, checkpoint="tiny", text=text, voice=voice,
                  ref_text=voices[voice]["text"] if icl else None, language=language, layout=layout, icl=icl,
                  decoding={**GREEDY, **options}, **facts)

    for layout in ("nonstreaming", "streaming"):
        for voice, text in SHORT.items():
            clone(f"short_{voice}_{layout}", text, voice, layout, language="Auto" if voice == "nora" else "English")
        for voice, text in LONG.items():
            clone(f"long_{voice}_{layout}", text, voice, layout)
        for voice, text in CLONED.items():
            clone(f"icl_{voice}_{layout}", text, voice, layout, icl=True)
        clone(f"icl_long_{layout}", CLONED_LONG, "nora", layout, icl=True)
        clone(f"penalty_{layout}", SHORT["june"], "june", layout, repetition_penalty=1.3)
    clone("capped_streaming", SHORT["clara"], "clara", "streaming", max_new_tokens=10)


def random_speech(cases, checkpoints, tiny):
    """Cases of the random checkpoints: prompts with speaker ids, dialects, languages and instructions."""
    short = dict(max_new_tokens=14)

    def case(name, checkpoint, recorder, speak, layout, prompt):
        if not cases.wants(f"{checkpoint}_{name}"):
            return
        tensors, facts = spoken(recorder, speak, non_streaming_mode=layout == "nonstreaming", **short, **prompt)
        facts_of_prompt = {k: v for k, v in prompt.items() if isinstance(v, (str, type(None)))}
        cases.add(f"{checkpoint}_{name}", "speech", tensors, checkpoint=checkpoint, layout=layout,
                  icl=False, decoding={**GREEDY, **short}, **facts_of_prompt, **facts)

    for checkpoint in ("custom_voice_identity", "custom_voice_linear"):
        wrapper = load(checkpoints / checkpoint)
        recorder = Recorder(wrapper)
        for name, layout, prompt in (
            ("dialect_auto", "nonstreaming", dict(speaker="bo", language="Auto", text="Hello, small world.")),
            ("dialect_chinese", "streaming", dict(speaker="Cy", language="Chinese", text="One boat, two boats.")),
            ("dialect_english", "nonstreaming", dict(speaker="bo", language="English", text="Red and blue.")),
            ("plain_auto", "streaming", dict(speaker="ada", language="Auto", text="No one knows.")),
            ("instructed", "nonstreaming",
             dict(speaker="ada", language="English", text="Come in.", instruct="Speak slowly and softly.")),
        ):
            case(name, checkpoint, recorder, wrapper.generate_custom_voice, layout, prompt)

    wrapper = load(checkpoints / "voice_design")
    recorder = Recorder(wrapper)
    for name, layout, prompt in (
        ("auto", "nonstreaming", dict(instruct="A calm, low voice.", text="The sea is quiet.")),
        ("english", "streaming", dict(instruct="A bright young voice, fast.", language="English", text="Look up!")),
        ("uninstructed", "nonstreaming", dict(instruct="", language="Chinese", text="Nothing to add.")),
    ):
        case(name, "voice_design", recorder, wrapper.generate_voice_design, layout, {"language": "Auto", **prompt})

    wrapper = load(checkpoints / "base")
    recorder = Recorder(wrapper)
    for name, layout, icl in (("icl", "nonstreaming", True), ("icl", "streaming", True), ("xvector", "streaming", False)):
        if not cases.wants(f"base_{name}_{layout}"):
            continue
        prompt = wrapper.create_voice_clone_prompt(
            ref_audio=str(tiny / "voices/june.wav"), ref_text="I found the old map.", x_vector_only_mode=not icl)
        recorder.clear()
        tensors, facts = spoken(
            recorder, wrapper.generate_voice_clone, text="A random voice.", language="English",
            voice_clone_prompt=prompt, non_streaming_mode=layout == "nonstreaming", **short)
        tensors["speaker_embedding"] = prompt[0].ref_spk_embedding.clone()
        if icl:
            tensors["ref_codes"] = prompt[0].ref_code.to(torch.int32)
        else:
            tensors.pop("ref_ids", None)
        cases.add(f"base_{name}_{layout}", "speech", tensors, checkpoint="base", voice="june",
                  text="A random voice.", ref_text="I found the old map." if icl else None, language="English",
                  layout=layout, icl=icl, decoding={**GREEDY, **short}, **facts)


DISTRIBUTIONS = {
    "published_defaults": dict(temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05,
                               subtalker_temperature=0.9, subtalker_top_k=50, subtalker_top_p=1.0),
    "top_p": dict(temperature=0.7, top_k=0, top_p=0.8, repetition_penalty=1.0,
                  subtalker_temperature=1.3, subtalker_top_k=0, subtalker_top_p=0.6),
    "all_together": dict(temperature=1.4, top_k=20, top_p=0.6, repetition_penalty=1.5,
                         subtalker_temperature=0.6, subtalker_top_k=12, subtalker_top_p=0.9),
}


def distributions(cases, tiny_wrapper, checkpoints, tiny):
    """What is sampled from, after every processor, along a history that the reference itself sampled."""

    def run(name, checkpoint, recorder, frames, request, params):
        if not cases.wants(f"distribution_{name}_{checkpoint}"):
            return
        torch.manual_seed(20)
        request(**params, max_new_tokens=frames + 1)
        tensors, _ = recorder.take()
        kept = {k: tensors[k] for k in ("codes", "logits", "cp.logits")}
        kept["probs"] = probabilities(tensors["scores"])
        kept["cp.probs"] = probabilities(tensors["cp.scores"])

        cases.add(f"distribution_{name}_{checkpoint}", "distribution", kept, checkpoint=checkpoint,
                  frames=int(kept["codes"].shape[0]), min_new_tokens=2, decoding=params)

    recorder = Recorder(tiny_wrapper)
    prompt = tiny_wrapper.create_voice_clone_prompt(ref_audio=str(tiny / "voices/nora.wav"), x_vector_only_mode=True)
    for name, params in DISTRIBUTIONS.items():
        run(name, "tiny", recorder, 12,
            lambda **kw: tiny_wrapper.generate_voice_clone(
                text=SHORT["nora"], language="English", voice_clone_prompt=prompt, **kw), params)
    wrapper = load(checkpoints / "custom_voice_linear")
    recorder = Recorder(wrapper)
    for name, params in DISTRIBUTIONS.items():
        run(name, "custom_voice_linear", recorder, 10,
            lambda **kw: wrapper.generate_custom_voice(text="One, two, three.", speaker="ada", **kw), params)


def processors(cases):
    """The processors alone on made-up scores: ties at the k-th place, signs, a history that repeats."""
    from transformers import generation as g

    generator = torch.Generator().manual_seed(5)
    vocab, suppressed_from, eos = 96, 64, 66
    out, facts = {}, []
    for i, (penalty, temperature, top_k, top_p, history) in enumerate((
        (1.0, 1.0, 0, 1.0, []),
        (1.3, 1.0, 0, 1.0, [3, 3, 3, 60, 12]),
        (0.8, 0.5, 7, 1.0, [1, 2]),
        (1.1, 2.0, 5, 0.5, [9]),
        (1.05, 0.9, 50, 0.95, [63, 0, 63]),
        (1.0, 0.05, 1, 1.0, [4]),
        (1.0, 1.0, 0, 0.01, [5, 6, 7]),
        (2.0, 1.0, 1000, 0.3, [10, 11, 12, 13]),
    )):
        scores = torch.randn(1, vocab, generator=generator) * 3
        scores = (scores * 2).round() / 2  # many exact ties
        ids = torch.tensor([history], dtype=torch.long)
        chain = g.LogitsProcessorList()
        if penalty != 1.0:
            chain.append(g.RepetitionPenaltyLogitsProcessor(penalty))
        chain.append(g.MinNewTokensLengthLogitsProcessor(0, 2, torch.tensor([eos])))
        chain.append(g.SuppressTokensLogitsProcessor([t for t in range(suppressed_from, vocab) if t != eos]))
        if temperature != 1.0:
            chain.append(g.TemperatureLogitsWarper(temperature))
        if top_k != 0:
            chain.append(g.TopKLogitsWarper(top_k))
        if top_p < 1.0:
            chain.append(g.TopPLogitsWarper(top_p))
        out[f"{i}.logits"] = scores[0].clone()
        out[f"{i}.probs"] = probabilities(chain(ids, scores.clone()))[0]
        facts.append(dict(repetition_penalty=penalty, temperature=temperature, top_k=top_k, top_p=top_p, history=history))
    cases.add("processors", "processors", out, eos=eos, suppressed_from=suppressed_from, min_new_tokens=2, rows=facts)


def read_wav(path):
    with wave.open(str(path)) as f:
        assert f.getframerate() == 24000 and f.getnchannels() == 1 and f.getsampwidth() == 2
        return numpy.frombuffer(f.readframes(f.getnframes()), dtype="<i2").astype(numpy.float32) / 32768.0


def code_margins(codec, features):
    """For every frame and codebook: how much farther the second-nearest entry is than the nearest."""
    quantizer, margins = codec.encoder.quantizer, []
    for part in (quantizer.semantic_residual_vector_quantizer, quantizer.acoustic_residual_vector_quantizer):
        residual = part.input_proj(features)
        for layer in part.layers:
            flat = residual[0].T
            distances = torch.cdist(flat[None], layer.codebook.embed[None])[0]
            margins.append(gap(-distances))
            residual = residual - layer.decode(layer.encode(residual))
    return torch.stack(margins, dim=1)


@torch.inference_mode()
def encoders(cases, name, wrapper, audio, **facts):
    """Reference audio through the codec encoder and the speaker encoder, with the stages in between."""
    if not cases.wants(name):
        return
    from qwen_tts.core.models.modeling_qwen3_tts import mel_spectrogram

    codec = wrapper.model.speech_tokenizer.model
    out = {"codes": wrapper.model.speech_tokenizer.encode(audio, sr=24000).audio_codes[0].to(torch.int32)}
    samples = torch.from_numpy(audio)[None, None]
    conv = codec.encoder.encoder(samples)
    transformed = codec.encoder.encoder_transformer(conv.transpose(1, 2))[0].transpose(1, 2)
    features = codec.encoder.downsample(transformed)
    out["conv"], out["transformed"], out["features"] = conv[0].T, transformed[0].T, features[0].T
    out["codes.margin"] = code_margins(codec, features)[: out["codes"].shape[0], : out["codes"].shape[1]]
    if audio.shape[0] > 384:  # the mel front end mirrors 384 samples at each end
        mel = mel_spectrogram(torch.from_numpy(audio)[None], n_fft=1024, num_mels=128, sampling_rate=24000,
                              hop_size=256, win_size=1024, fmin=0, fmax=12000)
        out["mel"] = mel[0].T
        if mel.shape[2] > 4:  # the widest dilation mirrors four frames
            out["speaker_embedding"] = wrapper.model.extract_speaker_embedding(audio, 24000).clone()

    cases.add(name, "encoder", out, samples=int(audio.shape[0]), frames=int(out["codes"].shape[0]),
              smallest_margin=round(float(out["codes.margin"].min()), 6), **facts)


@torch.inference_mode()
def codec_alone(cases, name, wrapper, frames):
    """The codec decoder over random codes: one pass over `frames` frames, longer than its attention window."""
    if not cases.wants(f"codec_{name}"):
        return
    decoder = wrapper.model.speech_tokenizer.model.decoder
    config = decoder.config
    codes = torch.randint(0, config.codebook_size, (frames, config.num_quantizers),
                          generator=torch.Generator().manual_seed(frames))
    seen = {}
    hooks = [
        decoder.pre_transformer.register_forward_hook(lambda _m, _a, o: seen.update(latent=o.last_hidden_state[0])),
        decoder.decoder[0].register_forward_hook(lambda _m, _a, o: seen.update(conv_in=o[0].T)),
    ]
    pcm = decoder(codes.T[None])[0, 0].reshape(frames, SAMPLES_PER_FRAME)
    for hook in hooks:
        hook.remove()
    out = {"codes": codes.to(torch.int32), "latent": seen["latent"], "conv_in": seen["conv_in"], "pcm": pcm,
           "pcm.rms": pcm.pow(2).mean(dim=1).sqrt()}

    cases.add(f"codec_{name}", "codec", out, checkpoint=name, frames=frames, window=config.sliding_window, clamped=int((pcm.abs() >= 1).sum()))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", type=Path, required=True, help="folder of the embedded checkpoint")
    parser.add_argument("--committed", type=Path, required=True, help="folder for the thinned cases")
    parser.add_argument("--full", type=Path, required=True, help="folder for the cases with every row")
    parser.add_argument("--threads", type=int, default=1, help="torch threads; one is steadiest on a busy machine")
    parser.add_argument("--only", metavar="REGEX", help="make only the cases whose name matches, keep the others")
    parser.add_argument("--thin-only", action="store_true", help="write the committed folder anew from the full one")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    cases = Cases(args.committed, args.full, "$^" if args.thin_only else args.only)
    if args.thin_only:
        return cases.thin_again()
    for folder in cases.folders.values():
        for name in random_checkpoints.VARIANTS:
            random_checkpoints.write_checkpoint(folder / "checkpoints" / name, name, args.tiny)
    checkpoints = args.full / "checkpoints"
    if cases.wants("processors"):
        processors(cases)
    wrapper = load(args.tiny)
    for voice in SHORT:
        encoders(cases, f"encoder_{voice}", wrapper, read_wav(args.tiny / f"voices/{voice}.wav"), checkpoint="tiny",
                 voice=voice)
    nora = read_wav(args.tiny / "voices/nora.wav")
    for samples in (1, 959, 1921, 30001):
        encoders(cases, f"encoder_first_{samples}", wrapper, nora[:samples].copy(), checkpoint="tiny", voice="nora")
    # 350 steps of the encoder's transformer: more than the 250 its config calls a window.
    voices = numpy.concatenate([read_wav(args.tiny / f"voices/{voice}.wav") for voice in SHORT])
    encoders(cases, "encoder_all_voices", wrapper, voices, checkpoint="tiny", voice="+".join(SHORT))
    codec_alone(cases, "tiny", wrapper, 120)
    tiny_speech(cases, wrapper, args.tiny)
    distributions(cases, load(args.tiny), checkpoints, args.tiny)
    random_speech(cases, checkpoints, args.tiny)
    base = load(checkpoints / "base")
    encoders(cases, "encoder_base", base, nora, checkpoint="base", voice="nora")
    codec_alone(cases, "base", base, 30)
    unsafe = [(e["name"], e["smallest_margin"]) for e in cases.entries.values()
              if e["kind"] == "speech" and e["smallest_margin"] < SAFE_MARGIN]
    print(f"{len(cases.entries)} cases; choices closer than {SAFE_MARGIN}: {unsafe}")


if __name__ == "__main__":
    main()
