"""What an answer cost, from the public price list that comes with `genai-prices`.

The list is part of the installed package; nothing is fetched.
"""

from seer.events import Usage


def cost_of(usage: Usage, model: str | None, vendor: str) -> float | None:
    """The cost of one answer in US dollars; None where no price is known.

    Args:
        usage: What the answer used.
        model: The model, as the vendor names it.
        vendor: The vendor, as the price list names it (`anthropic`, `openai`, `google`).
    """
    try:
        from genai_prices import Usage as Counted
        from genai_prices import calc_price
    except ImportError:
        return None
    if model is None:
        return None
    counted = Counted(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )
    try:
        return float(calc_price(counted, model, provider_id=vendor).total_price)
    except LookupError:
        return None
