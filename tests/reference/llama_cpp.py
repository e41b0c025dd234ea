"""llama.cpp, through the package xllamacpp, as the engine to compare with: deterministic and with float32 caches."""

import json
import urllib.request

import xllamacpp


class Engine:
    """One GGUF file, loaded."""

    def __init__(self, path, context=256, threads=1):
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = context
        parameters.n_parallel = 1
        parameters.n_gpu_layers = 0
        parameters.warmup = False
        parameters.fit_params = False
        parameters.verbosity = 0
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
        self.server = xllamacpp.Server(parameters)

    def complete(self, tokens, length, candidates):
        """Continues `tokens` greedily by up to `length`. Answers the text, and for each step a list of
        (token, log-probability), likeliest first; the last step may be an end token. The log-probabilities
        are those of the bare logits."""
        answer = self.server.handle_completions({
            "prompt": tokens, "n_predict": length, "n_probs": candidates, "cache_prompt": False,
            "temperature": 0.0, "repeat_penalty": 1.0, "samplers": ["temperature"],
        })
        if "choices" not in answer:
            raise RuntimeError(f"llama.cpp answered {json.dumps(answer)[:300]}")
        choice = answer["choices"][0]
        steps = [
            [(entry["id"], entry["logprob"]) for entry in step["top_logprobs"]]
            for step in choice["logprobs"]["content"]
        ]
        return choice["text"], steps

    def tokenize(self, text):
        """Tokens of `text`, special ones recognized, with those that the model wants at its start."""
        return self._post("/tokenize", {"content": text, "add_special": True, "parse_special": True})["tokens"]

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
