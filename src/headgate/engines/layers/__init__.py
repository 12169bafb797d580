"""Layers around an engine, always stacked in this order: fallback( denial cache( prefetch( the engine ))).

denial_cache    repeats a refusal without a request to the engine
prefetch        fetches units of hot keys ahead
fallback        answers when the engine does not
"""
