"""Prefetching: fetches units of hot keys ahead, and hands them out without a request to the engine.

Picture a kiosk that orders from a warehouse. What sells is ordered ahead, as much as was sold lately, and sold
over the counter; what does not sell goes back before it spoils. Such an order is a fetch: one charge on the inner
engine of the call's cost and some extra, of which the extra stays here as a batch.

Sizing. A key with fewer than HOT_CALLS calls during the last hold time prefetches nothing. A hot one prefetches as
many units as were taken during that time: at most U (by default a tenth of what the limit holds at once), and at
most half of what the last answer left. So near the edge every call is a single take, decided exactly, and no fetch
is refused for nothing; one that is refused all the same is repeated for the call alone.

A batch lasts `hold`, never longer than the count it was charged to, reckoned from the moment before the fetch.
What is left then, on close, or when a call wants more than is left, is given back by the fetch's receipt. As
taking 3 is taking 1 three times at the same instant, each call gets the receipt of its own units, and may refund
them: into the batch they came from while it lasts, into the count after that.

LAW. Let N processes use a key, each holding at most U of its units, on the way out and on the way back included:
  - over any span, at most N * U units more are admitted than the limit alone admits;
  - at most N * U units are kept from others, for at most `hold`.
Proof, by the inner count less what is held (between 0 and N * U):
  - token bucket: the water less what is held rises by what is admitted, falls by no more than the hole drains
    (giving back lowers both), is never above the burst and never below -N * U. So over a span of t at most burst +
    rate * t + N * U units pass, whatever was given back meanwhile;
  - sliding window, sliding log: what was charged within the frame and not given back is at most the amount; all
    else that is admitted in it was held when it began;
  - fixed window: a batch expires with its window, so all that a window admits was charged in it: none more.
A process that dies, a return that fails (`lost_units`) and a fetch that arrives after a reset keep their units
from others until the limit refills. Only the process that makes a reset knows of it: the others hand out or give
back what they hold of the deleted count, at most U each. "For at most hold" is by the process's own clock.

Not prefetched: leaky bucket and smooth, because they decide when each call goes and a batch would let calls go
together; slots, which are held and not spent; reservations, peeks, and several limits at once, which the inner
engine decides as ever. (Units held here add to what a peek shows.)

A thread gives back what was not used. Without one nothing is fetched ahead, and each call tries to start it.
A rule's ChargeOptions may choose `hold` and U; options without prefetch are exact. So are rules with a lockout,
because each of their refusals must be counted, and with overrides, because only the engine knows them. An exact
meter calls the inner meter itself: nothing is counted here, and no time is lost.

prefetched_units    the recent demand for each key, and what is left of each fetch
prefetched_batches  all batches of an engine, in the order in which they expire
prefetch_bounds     how long units may be held, and how many; the guarantee in words
async_engine        the layer; sync_engine is generated from it
async_meter         takes, refunds and resets; sync_meter is generated from it
async_give_back     gives units back; sync_give_back is generated from it
async_background_returns  gives them back in time, by timers; sync_background_returns by a thread; by hand
meter_without_prefetch   the meter of limits that are not prefetched
"""

from headgate.engines.layers.prefetch.async_engine import AsyncPrefetchEngine
from headgate.engines.layers.prefetch.prefetch_bounds import guarantee
from headgate.engines.layers.prefetch.prefetched_units import max_prefetch
from headgate.engines.layers.prefetch.sync_engine import PrefetchEngine

__all__ = ["AsyncPrefetchEngine", "PrefetchEngine", "guarantee", "max_prefetch"]
