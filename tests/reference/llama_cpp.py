"""llama.cpp, through the package xllamacpp, as the engine to compare with: deterministic and with float32 caches."""

import json
import urllib.request

import xllamacpp


class Engine:
    """One GGUF file, loaded, with LoRA adapters. `whole` is a token that is some whole characters."""

    def __init__(self, path, whole, context=256, threads=1, adapters=()):
        self.whole = whole
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = context
        parameters.n_parallel = 1
        parameters.swa_full = True
        parameters.n_gpu_layers = 0
        parameters.warmup = False
        parameters.fit_params = False
        parameters.verbosity = 0
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(str(path), 1.0) for path in adapters]
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(parameters)

    def candidates(self, tokens, count):
        """The `count` likeliest tokens to follow `tokens`: (token, log-probability), likeliest first, from the
        bare logits. What is computed for `tokens` is kept for a call that continues them."""
        answer = self.server.handle_completions({
            "prompt": tokens, "n_predict": 1, "n_probs": count, "cache_prompt": True, "temperature": 0.0,
            # llama.cpp leaves out a token that ends inside a character. It may take any other: the
            # log-probabilities are those before the bias.
            "logit_bias": [[self.whole, 1e6]],
        })
        if "choices" not in answer:
            raise RuntimeError(f"llama.cpp answered {json.dumps(answer)[:300]}")
        (step,) = answer["choices"][0]["logprobs"]["content"]
        return [(entry["id"], entry["logprob"]) for entry in step["top_logprobs"]]

    def greedy(self, tokens, length, ends, count=2):
        """The candidates of each step of the greedy continuation of `tokens`, `length` steps at most; a token
        of `ends` is the last."""
        steps = []
        while len(steps) < length and not (steps and steps[-1][0][0] in ends):
            steps.append(self.candidates(tokens + [step[0][0] for step in steps], count))
        return steps

    def tokenize(self, text):
        """Tokens of `text`, special ones recognized, with those that the model wants at its start."""
        return self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

    def text(self, tokens):
        """The text of `tokens`."""
        return self._post("/detokenize", {"tokens": tokens})["content"]

    def render(self, message):
        """The prompt that the model's chat template makes of one message of the user."""
        return self._post("/apply-template", {"messages": [{"role": "user", "content": message}]})["prompt"]

    def _post(self, route, body):
        address = self.server.listening_address
        request = urllib.request.Request(
            address + route, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)
