"""Models: opening, tokens, templates, answers."""

import json
import threading

import pytest

import triad

QUESTION = [{"role": "user", "content": "Name three colours."}]


def test_a_model_reports_its_name_context_and_vocabulary(model):
    assert (model.name, model.context, model.vocab_size) == ("smollm2-135m", 512, 49152)
    assert model.end_tokens and "smollm2-135m" in repr(model)


def test_tokens_become_the_text_that_they_were_made_of(model):
    text = "Ünïcode, 数, and\nlines"
    assert model.detokenize(model.tokenize(text)) == text
    assert model.tokenize("<|im_end|>", special=True) == [2] and 2 in model.end_tokens
    assert len(model.tokenize("<|im_end|>")) > 1


def test_the_template_ends_where_the_answer_begins(model):
    text = model.apply_template(QUESTION)
    assert text.endswith("<|im_start|>assistant\n")
    assert not model.apply_template(QUESTION, add_generation_prompt=False).endswith("assistant\n")


def test_a_chat_is_the_answer_to_the_text_of_its_template(model):
    tokens = model.tokenize(model.apply_template(QUESTION), special=True)
    chat = model.chat(QUESTION, max_tokens=12, temperature=0)
    assert chat.tokens == model.generate(tokens, max_tokens=12, temperature=0).tokens
    assert chat.prompt_tokens == len(tokens) and str(chat) == chat.text != ""
    assert chat.finish == "length" and chat.decode_tokens_per_second > 0 and chat.time_to_first_token_seconds > 0


def test_the_parts_of_a_stream_are_the_text_of_the_answer(model):
    stream = model.chat_stream(QUESTION, max_tokens=12, temperature=0)
    parts = list(stream)
    assert len(parts) > 1 and "".join(parts) == stream.answer.text
    assert stream.answer.text == model.chat(QUESTION, max_tokens=12, temperature=0).text
    assert list(stream) == []


def test_the_same_seed_gives_the_same_answer_and_speculation_changes_none(model):
    options = {"max_tokens": 16, "temperature": 1.0, "seed": 3}
    first = model.generate("Once upon a time", **options)
    assert model.generate("Once upon a time", **options).tokens == first.tokens
    assert model.generate("Once upon a time", **options, speculate=False).tokens == first.tokens
    assert model.generate("Once upon a time", **options | {"seed": 4}).tokens != first.tokens


def test_a_stop_string_ends_an_answer_and_is_no_part_of_it(model):
    whole = model.chat(QUESTION, max_tokens=24, temperature=0).text
    stop = whole.split()[2]
    answer = model.chat(QUESTION, max_tokens=24, temperature=0, stop=stop)
    assert answer.finish == "stop-string" and answer.text == whole[: whole.index(stop)]


def test_answers_have_the_form_that_was_asked_for(model):
    assert model.chat(QUESTION, regex="(red|green)", max_tokens=8).text in ("red", "green")
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    schema["additionalProperties"] = False
    # The model may put a new line and sixteen tabs, each a token, wherever JSON has space.
    text = model.chat(QUESTION, schema=schema, max_tokens=100).text
    assert json.loads(text)["colour"] in ("red", "blue")
    with pytest.raises(ValueError, match="at most one of"):
        model.chat(QUESTION, regex="a", grammar="start: /a/")
    with pytest.raises(triad.Error):
        model.chat(QUESTION, regex="(")


def test_probabilities_are_told_of_each_token(model):
    answer = model.generate("The capital of France is", max_tokens=3, temperature=0, logprobs=2)
    assert [token for token, _, _ in answer.logprobs] == answer.tokens
    for token, log_probability, likeliest in answer.logprobs:
        assert len(likeliest) == 2 and likeliest[0] == (token, log_probability)
    assert model.generate("The", max_tokens=1).logprobs is None


def test_a_wrong_option_is_an_error_that_names_it(model):
    for options, error, message in [
        ({"max_token": 3}, TypeError, "there is no option max_token"),
        ({"temperature": "hot"}, TypeError, "temperature"),
        ({"temperature": -1}, ValueError, "temperature"),
        ({"top_k": -1}, ValueError, "top_k"),
        ({"logit_bias": {99999999: 1}}, triad.Error, "vocabulary"),
    ]:
        with pytest.raises(error, match=message):
            model.generate("a", **options)
    with pytest.raises(TypeError, match="a text or a list of tokens"):
        model.generate({"role": "user"})
    with pytest.raises(TypeError, match="messages"):
        model.chat("Name three colours.")
    with pytest.raises(triad.Error, match="role"):
        model.chat([{"content": "a"}])
    with pytest.raises(triad.PromptTooLong, match="513 tokens"):
        model.generate([1] * 513)
    with pytest.raises(triad.Error, match="empty"):
        model.generate("")


def test_a_model_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(triad.Error, match="none.gguf"):
        triad.Model(str(tmp_path / "none.gguf"))
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(triad.Error, match="broken.gguf"):
        triad.Model(str(tmp_path / "broken.gguf"), float=True)
    with pytest.raises(ValueError, match="kv"):
        triad.Model(kv="f64")
    with pytest.raises(ValueError, match="context"):
        triad.Model(context=0)


def test_progress_is_told_while_a_model_is_opened_and_its_error_ends_that():
    steps = []
    triad.Model("smollm2-135m", context=16, progress=steps.append)
    assert steps[-1] == "loading smollm2-135m"

    def fails(step):
        raise LookupError(step)

    with pytest.raises(LookupError, match="loading"):
        triad.Model("smollm2-135m", context=16, progress=fails)


def test_threads_compute_at_the_same_time_what_each_computes_alone(model):
    prompts = [f"{number} is a number that" for number in range(4)]
    alone = [model.generate(prompt, max_tokens=8, temperature=0).tokens for prompt in prompts]
    together = [None] * len(prompts)

    def answer(index):
        together[index] = model.generate(prompts[index], max_tokens=8, temperature=0).tokens

    threads = [threading.Thread(target=answer, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_pythons_lock_is_free_while_an_answer_is_computed(model):
    counted, done = 0, threading.Event()

    def answer():
        model.generate("Once upon a time", max_tokens=48, temperature=0)
        done.set()

    thread = threading.Thread(target=answer)
    thread.start()
    while not done.wait(0.001):
        counted += 1
    thread.join()
    assert counted > 10, "this thread had no turn"


def test_an_embedding_has_length_one_and_tells_texts_apart(model):
    cat, kitten, sum_ = (model.embed(text) for text in ("A cat sleeps.", "A kitten sleeps.", "3 + 4 = 7"))
    assert cat.shape == kitten.shape and abs(float(cat @ cat) - 1) < 1e-4
    assert float(cat @ kitten) > float(cat @ sum_)
    assert not (model.embed("A cat sleeps.", pooling="last") == cat).all()
    with pytest.raises(ValueError, match="mean"):
        model.embed("A cat", pooling="max")


def test_an_adapter_that_is_not_there_is_an_error_that_names_it(model):
    with pytest.raises(triad.TriadError, match="no-adapter"):
        model.generate("Hello", lora=["no-adapter.gguf"], max_tokens=1)
    with pytest.raises(triad.TriadError, match="no-adapter"):
        model.generate("Hello", lora=[("no-adapter.gguf", 0.5)], max_tokens=1)
    with pytest.raises(TypeError, match="lora"):
        model.generate("Hello", lora=3, max_tokens=1)
