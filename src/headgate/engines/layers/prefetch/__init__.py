"""Prefetching: fetches units of hot keys ahead, and hands them out without a round trip.

engines             the layer, sync and async
hot_keys            which keys are hot, how much is fetched for them, and when it goes back
prefetched_units    units that are held here, and how many are left
return_thread       gives back in time what was not used
"""
