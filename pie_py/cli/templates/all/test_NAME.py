"""Run by `pie-py test`: `pie` is a server whose model says what the test tells it to."""


def test_it_sends_what_the_model_says(pie):
    pie.answers("there was a king.")
    done = pie.run(".", "--prompt", "Once upon a time", "--max-tokens", "20")
    assert "".join(done.sent) == "there was a king."
