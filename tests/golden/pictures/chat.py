#!/usr/bin/env python3
"""Makes a tiny SmolVLM with a tokenizer, and the prompts and answers of conversations with pictures.

    pip install torch torchvision transformers==5.24.0 pillow num2words
    python tests/golden/pictures/chat.py

It writes the model's folder `chat/` with random weights, and `chat.json`: for each conversation its messages, the names
of its pictures in `files/`, the tokens of `apply_chat_template` with runs of the picture's token as `[id, count]`, and the
tokens that `generate` chooses greedily in float32.
"""

import itertools
import json
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoProcessor, PreTrainedTokenizerFast, SmolVLMConfig, SmolVLMForConditionalGeneration
from transformers.image_utils import load_image

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "chat"
TILE, PATCH, SCALE, ROWS = 48, 8, 2, 9
TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}"
    "{{': '}}{% endif %}{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}{% elif line['type'] == 'image' %}"
    "{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<end_of_utterance>", "<fake_token_around_image>", "<image>", "<global-img>"]
SPECIAL += [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
# Roles, and contents with names of pictures.
TALKS = [
    [("user", [["28x28.png"], "What is this?"])],
    [("user", [["333x777.png"], "Where is the button?"])],
    [("user", [["rgba.png", "300x150.png"], "Which of both is darker?"]), ("assistant", [[], "The first."]), ("user", [[], "And\nnow?"])],
    [("system", [[], "Be brief."]), ("user", [[], "Hello"])],
]


def tokenizer():
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate(itertools.chain(letters, ["ĊĊ", "Ġt", "he", "Ġthe"]))}
    merges = [("Ċ", "Ċ"), ("Ġ", "t"), ("h", "e"), ("Ġt", "he")]
    fast = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    names = {"eos_token": "<end_of_utterance>", "bos_token": "<|im_start|>", "pad_token": "<|endoftext|>"}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=fast, **names)
    wrapped.add_special_tokens({"additional_special_tokens": SPECIAL})
    wrapped.chat_template = TEMPLATE
    return wrapped


def model(tokens):
    torch.manual_seed(7)
    text = dict(model_type="llama", hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16,
                vocab_size=len(tokens), max_position_embeddings=2048, rms_norm_eps=1e-5, rope_theta=10000.0,
                pad_token_id=tokens.pad_token_id, bos_token_id=tokens.bos_token_id, eos_token_id=tokens.eos_token_id, tie_word_embeddings=False)
    vision = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, image_size=TILE, patch_size=PATCH)
    config = SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=SCALE, image_token_id=tokens.convert_tokens_to_ids("<image>"),
                           pad_token_id=tokens.pad_token_id, tie_word_embeddings=False)
    config.eos_token_id = tokens.eos_token_id
    made = SmolVLMForConditionalGeneration(config).eval()
    # Larger than the default of 0.02, so that pictures change the answers.
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
    made.generation_config.eos_token_id = tokens.eos_token_id
    return made


def write(name, value):
    (FOLDER / name).write_text(json.dumps(value, indent=2) + "\n")


def runs(ids, image):
    """The ids, with runs of `image` as `[image, count]`."""
    groups = [(token, len(list(group))) for token, group in itertools.groupby(ids)]
    return list(itertools.chain.from_iterable([[image, count]] if token == image else [token] * count for token, count in groups))


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    tokens = tokenizer()
    made = model(tokens)
    made.save_pretrained(FOLDER)
    tokens.save_pretrained(FOLDER)
    processor = json.loads((HERE / "processors/small-smolvlm/processor_config.json").read_text())
    image = {**processor["image_processor"], "image_processor_type": "SmolVLMImageProcessor", "processor_class": "SmolVLMProcessor"}
    write("preprocessor_config.json", image)
    write("processor_config.json", {"image_seq_len": ROWS, "processor_class": "SmolVLMProcessor"})
    processor = AutoProcessor.from_pretrained(FOLDER)
    row = tokens.convert_tokens_to_ids("<image>")
    lines = []
    for talk in TALKS:
        part = lambda text: {"type": "text", "text": text}
        messages = [{"role": role, "content": [*({"type": "image"} for _ in images), part(text)]} for role, (images, text) in talk]
        names = [name for _, (images, _) in talk for name in images]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
        images = [load_image(str(HERE / "files" / name)) for name in names]
        inputs = processor(text=text, images=[images] if images else None, return_tensors="pt")
        ids = inputs["input_ids"][0].tolist()
        with torch.no_grad():
            made.generation_config.pad_token_id = tokens.pad_token_id
            answer = made.generate(**inputs, max_new_tokens=12, do_sample=False)[0, len(ids):].tolist()
        lines.append({"messages": messages, "files": names, "tokens": runs(ids, row), "answer": answer})
    (HERE / "chat.json").write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    print([(len(line["tokens"]), line["answer"]) for line in lines], sum(file.stat().st_size for file in FOLDER.iterdir()))


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
