# Rules for what a context beside says as well: `beside(0)`.


def guidance(logits, other, scale):
    """So many times as far from a text without the prompt (Sanchez et al. 2023)."""
    without = other.log_softmax()
    return without + (logits.log_softmax() - without) * scale


def contrastive(logits, other, share=0.1):
    """What a weaker model finds unlikely, of tokens with a share of the likeliest's probability (Li
    et al. 2023).
    """
    return min_p(logits, share) - other.log_softmax()


def context_aware(logits, other, alpha):
    """What a document makes likelier than the same text without it says (Shi et al. 2024)."""
    return logits * (alpha + 1.0) - other * alpha
