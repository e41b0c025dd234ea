"""Sessions: logits, what is kept and forgotten, and who may use them."""

import time

import numpy as np
import pytest
from conftest import TOKENS

import triad


def test_logits_of_all_tokens_end_with_those_of_the_last(model):
    all_logits = model.session().prefill(TOKENS, all=True)
    last = model.session().prefill(TOKENS)
    assert all_logits.shape == (len(TOKENS), model.vocab_size) and all_logits.dtype == np.float32
    # What is scored reads the output matrix's blocks in bf16, what is sampled in INT16.
    assert last.shape == (model.vocab_size,) and np.allclose(all_logits[-1], last, atol=0.2)


def test_a_decoded_token_is_the_likeliest_of_an_answer(model, session):
    logits = session.prefill(TOKENS)
    token = int(logits.argmax())
    following = int(session.decode(token).argmax())
    assert model.generate(TOKENS, max_tokens=2, temperature=0).tokens == [token, following]
    assert session.tokens == [*TOKENS, token]
    assert int(session.logits.argmax()) == following


def test_what_a_session_has_seen_is_not_computed_again(session):
    session.prefill(TOKENS)
    answer = session.generate([*TOKENS, 1, 2], max_tokens=1)
    assert answer.reused_tokens == len(TOKENS)


def test_scores_are_the_logarithms_of_the_softmax(session):
    logits = session.prefill(TOKENS[:4], all=True).astype(np.float64)
    expected = [row[token] - np.log(np.exp(row - row.max()).sum()) - row.max() for row, token in zip(logits, TOKENS[1:4])]
    session.truncate(0)
    [(scores, greedy)] = session.score([(TOKENS[:4], 1)])
    assert np.allclose(scores, expected, atol=1e-5)
    assert greedy == all(row.argmax() == token for row, token in zip(logits, TOKENS[1:4]))
    with pytest.raises(triad.Error):
        session.score([(TOKENS, 0)])


def test_a_fork_goes_on_by_itself(session):
    session.prefill(TOKENS)
    fork = session.fork()
    fork.decode(1)
    assert (len(session.tokens), len(fork.tokens)) == (len(TOKENS), len(TOKENS) + 1)
    assert np.array_equal(session.decode(1), fork.logits)


def test_a_saved_session_goes_on_as_it_would_have(model, session, tmp_path):
    session.prefill(TOKENS)
    session.save(tmp_path / "session.bin")
    restored = model.restore(tmp_path / "session.bin")
    assert restored.tokens == TOKENS
    assert np.array_equal(restored.decode(1), session.decode(1))
    (tmp_path / "broken.bin").write_bytes(b"no session")
    with pytest.raises(triad.Error, match="broken.bin"):
        model.restore(tmp_path / "broken.bin")


def test_a_session_that_computes_is_busy_until_its_stream_ends(session):
    stream = session.stream("Once upon a time", max_tokens=400, temperature=0)
    next(stream)
    with pytest.raises(triad.Busy, match="fork"):
        session.decode(1)
    stream.cancel()
    assert stream.answer.finish == "cancelled"
    session.decode(1)


def test_a_stream_that_is_no_longer_read_gives_its_session_back(session):
    stream = session.stream("Once upon a time", max_tokens=400, temperature=0)
    next(stream)
    del stream
    for _ in range(2000):
        try:
            return session.truncate(0)
        except triad.Busy:
            time.sleep(0.005)
    pytest.fail("the session is still in use")


def test_tokens_that_are_none_are_refused(session):
    for call in (lambda: session.prefill([]), lambda: session.decode(10**6), lambda: session.prefill([1] * 513)):
        with pytest.raises(triad.Error):
            call()
    with pytest.raises(OverflowError):
        session.decode(-1)
