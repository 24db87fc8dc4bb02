"""Runs one request through the reference package and keeps what a second implementation is compared with."""

import torch


class Recorder:
    """Hooks on a loaded reference model; `take()` hands out what the last request left behind.

    Recorded: the talker's prefill input and output, the raw and the processed logits of every step, the raw and
    the processed logits of the code predictor, and the codes and hidden states the package returns.
    """

    def __init__(self, wrapper):
        self.wrapper = wrapper
        self.model = wrapper.model
        self.clear()
        talker, predictor = self.model.talker, self.model.talker.code_predictor
        talker.model.register_forward_pre_hook(self._talker_input, with_kwargs=True)
        talker.model.register_forward_hook(self._talker_output)
        talker.generate = self._with_scores(talker.generate, self._keep_talker)
        predictor.generate = self._with_scores(predictor.generate, self._keep_predictor)
        plain_generate = self.model.generate

        def generate(*args, **kwargs):
            codes, hidden = plain_generate(*args, **kwargs)
            self.codes, self.hidden = codes[0], hidden[0]
            for key in ("input_ids", "ref_ids", "instruct_ids"):
                ids = kwargs.get(key)
                if ids is not None and ids[0] is not None:
                    self.ids[key] = ids[0][0]
            return codes, hidden

        self.model.generate = generate

    def clear(self):
        self.prefill_in = self.prefill_out = self.codes = self.hidden = None
        self.ids, self.talker_steps, self.predictor_steps = {}, None, []

    def _talker_input(self, _module, _args, kwargs):
        if kwargs["inputs_embeds"].shape[1] > 1:
            self.prefill_in = kwargs["inputs_embeds"][0].clone()
            self._awaiting = True

    def _talker_output(self, _module, _args, output):
        if getattr(self, "_awaiting", False):
            self.prefill_out = output.last_hidden_state[0].clone()
            self._awaiting = False

    @staticmethod
    def _with_scores(generate, keep):
        def inner(*args, **kwargs):
            kwargs.update(output_scores=True, output_logits=True, return_dict_in_generate=True)
            result = generate(*args, **kwargs)
            keep(torch.stack([s[0] for s in result.logits]), torch.stack([s[0] for s in result.scores]))
            return result

        return inner

    def _keep_talker(self, logits, scores):
        self.talker_steps = (logits.float(), scores.float())

    def _keep_predictor(self, logits, scores):
        self.predictor_steps.append((logits.float(), scores.float()))

    def take(self):
        """Tensors of the last request by name; README.md describes each."""
        frames = self.codes.shape[0]
        logits, scores = self.talker_steps
        cp_logits = torch.stack([step[0] for step in self.predictor_steps])[:frames]
        cp_scores = torch.stack([step[1] for step in self.predictor_steps])[:frames]
        out = {name: ids.to(torch.int32) for name, ids in self.ids.items()}
        out |= {
            "prefill.inputs_embeds": self.prefill_in,
            "prefill.hidden": self.prefill_out,
            "codes": self.codes.to(torch.int32),
            "hidden": self.hidden[:frames],
            "logits": logits[:frames],
            "scores": scores[:frames],
            "cp.logits": cp_logits,
            "cp.scores": cp_scores,
            "codes.margin": torch.cat([gap(scores[:frames])[:, None], gap(cp_scores)], dim=1),
        }
        stopped_by_eos = bool(scores.shape[0] == frames + 1 and scores[-1].argmax() == self.eos)
        self.clear()
        return {k: v.contiguous() for k, v in out.items()}, stopped_by_eos

    @property
    def eos(self):
        return self.model.config.talker_config.codec_eos_token_id


def gap(scores):
    """Distance of the best score to the second best along the last axis: how safe a greedy choice is."""
    best = scores.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


def probabilities(scores):
    """What the reference samples from: softmax of the processed logits."""
    return torch.softmax(scores, dim=-1)
