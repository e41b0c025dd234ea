"""The engines to compare with, each in a process of its own: one may end it, and two versions of transformers can't
share one.

    python oracles.py transformers | llama.cpp

reads a job a line from its input, `{"model": PATH, "tokens": [...]}`, and answers with a line on its output:
`{"logits": FILE}`, `{"refused": TEXT}` or, of transformers, what `{"style": FOLDER}` and `{"fields": MODEL_TYPE}` ask
for. Versions are chosen by PYTHONPATH.
"""

import importlib
import inspect
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import warnings
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "GGML_NO_BACKTRACE": "1"}

sys.path.append(str(Path(__file__).resolve().parent.parent))

# Seconds after which a job has no answer.
LONGEST = 180
# Bytes of memory after which a process is started again: llama.cpp does not return what some files made it take.
MOST_MEMORY = 2 << 30
# Read by the code of every model, whichever family it is of.
SHARED = ["configuration_utils", "masking_utils", "modeling_rope_utils", "modeling_utils"]


class Transformers:
    def __init__(self):
        import torch
        import transformers

        torch.set_num_threads(1)
        transformers.logging.set_verbosity(transformers.logging.CRITICAL)
        warnings.simplefilter("ignore")
        self.torch, self.transformers = torch, transformers

    def logits(self, folder, tokens):
        from doubled import in_float64

        torch, transformers = self.torch, self.transformers
        kind = type(transformers.AutoConfig.from_pretrained(folder))
        images = transformers.AutoModelForImageTextToText
        is_text = kind in transformers.AutoModelForCausalLM._model_mapping or kind not in images._model_mapping
        auto = transformers.AutoModelForCausalLM if is_text else images
        # Version 5 computes experts in float32 otherwise, or not at all.
        newer = {} if transformers.__version__.startswith("4.") else {"experts_implementation": "eager"}
        model, loaded = auto.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32, output_loading_info=True, **newer
        )
        # Weights that the file has not are random.
        is_of_images = re.compile("vision|visual|multi_modal|connector").search
        absent = [name for name in loaded["missing_keys"] if not is_of_images(name)]
        if absent or loaded["mismatched_keys"]:
            raise ValueError(f"absent {absent[:3]}, of another shape {list(loaded['mismatched_keys'])[:3]}")
        in_float64(model.eval())
        with torch.no_grad():
            logits = model(torch.tensor([tokens]), use_cache=False, return_dict=True).logits[0]
        if not torch.isfinite(logits).all():
            raise ValueError("logits are not finite")
        return logits.numpy()

    def style(self, folder):
        """The configuration as this version writes it."""
        config = json.loads(self.transformers.AutoConfig.from_pretrained(folder).to_json_string(use_diff=False))
        return {key: value for key, value in config.items() if key != "_name_or_path"}

    def fields(self, model_type):
        """Every field that the code of a family reads, with its default where there is one: attributes of the
        configuration's class, arguments of its constructor, and what the model's code asks a configuration for."""
        transformers = self.transformers
        config = transformers.AutoConfig.for_model(model_type)
        own = dict(config.to_dict())
        for name, parameter in inspect.signature(type(config).__init__).parameters.items():
            if parameter.kind == parameter.POSITIONAL_OR_KEYWORD and name != "self":
                default = None if parameter.default is parameter.empty else parameter.default
                own.setdefault(name, default)
        base = transformers.PretrainedConfig
        made = [base.__post_init__ if hasattr(base, "__post_init__") else base.__init__]
        read = set()
        for source in [inspect.getmodule(type(config)), *made]:
            read |= set(re.findall(r'kwargs\.(?:pop|get)\("(\w+)"', inspect.getsource(source)))
        pattern = r'(?:getattr|hasattr)\([\w.]*config, "(\w+)"|config\.([a-z]\w+)\b(?!\()'
        find = lambda module: {one or other for one, other in re.findall(pattern, inspect.getsource(module))}
        mappings = (transformers.AutoModelForCausalLM._model_mapping, transformers.AutoModel._model_mapping)
        read |= find(inspect.getmodule(next(mapping[type(config)] for mapping in mappings if type(config) in mapping)))
        shared = set().union(*(find(importlib.import_module(f"transformers.{name}")) for name in SHARED))
        common = (set(base().to_dict()) | shared) - read - {"tie_word_embeddings"}
        return {"own": own, "read": sorted((read | shared) - own.keys()), "common": sorted(common)}


class LlamaCpp:
    def logits(self, path, tokens):
        """Log-probabilities after some prefixes of `tokens`, the whole last: the logits less one number a row."""
        import numpy as np
        from llama_cpp import Engine

        vocab = 128
        engine = Engine(path, whole=vocab - 1)
        ends = prefixes(len(tokens))
        rows = np.full((len(ends), vocab), np.nan)
        for row, end in enumerate(ends):
            for token, log_probability in engine.candidates(tokens[:end], vocab):
                rows[row, token] = log_probability
        if not np.isfinite(rows).all():
            raise ValueError("logits are not finite")
        return rows


def prefixes(count):
    """After how many tokens llama.cpp is asked."""
    return [end for end in (1, 5, 11) if end < count] + [count]


def serve(name):
    import numpy as np

    # Some files make either engine ask for all the memory of the machine.
    resource.setrlimit(resource.RLIMIT_AS, (4 * MOST_MEMORY, 4 * MOST_MEMORY))
    # What libraries print on their own must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    oracle = LlamaCpp() if name == "llama.cpp" else Transformers()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if "style" in job:
                answer = oracle.style(job["style"])
            elif "fields" in job:
                answer = oracle.fields(job["fields"])
            else:
                np.save(job["output"], oracle.logits(job["model"], job["tokens"]))
                answer = {"logits": job["output"]}
        except (Exception, SystemExit) as error:
            answer = {"refused": f"{type(error).__name__}: {error}"[:300]}
        answers.write(json.dumps(answer, default=str) + "\n")
        answers.flush()


class Worker:
    """A process of one oracle; it is started again when it has ended."""

    def __init__(self, name, path=None):
        self.name, self.path, self.process = name, path, None

    def ask(self, job):
        if self.process is None:
            environment = os.environ | ({"PYTHONPATH": str(self.path)} if self.path else {})
            command = [sys.executable, __file__, self.name]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
            )
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        # llama.cpp never ends with some numbers.
        timer = threading.Timer(LONGEST, self.process.kill)
        timer.start()
        line = self.process.stdout.readline()
        timer.cancel()
        if not line:
            self.process.wait()
            code, self.process = self.process.returncode, None
            return {"refused": f"the process ended with {code}"}
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        if pages * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY:
            self.close()
        return json.loads(line)

    def logits(self, model, tokens):
        import numpy as np

        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            answer = self.ask({"model": str(model), "tokens": tokens, "output": file.name})
            return (np.load(file.name), None) if "logits" in answer else (None, answer["refused"])

    def close(self):
        if self.process:
            self.process.stdin.close()
            self.process.wait()
            self.process = None


if __name__ == "__main__":
    serve(sys.argv[1])
