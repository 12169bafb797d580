"""Recorded decisions of other limiters, replayed on ours: `make conform VECTORS=DIR`.

    vectors           reads the files of recorded cases, and reports unreadable ones
    driven_engines    the engines that replay them: in memory, on Redis, on Valkey, on a clock that the test drives
    step_result       the result of a step: equal, different, or not compared, with the reason
    uncharged_costs   costs that headgate does not charge
    replay            replays every case of a file on every engine
    report            prints the table

`replay_NAME` translates the cases of one recorded limiter: guava, xtimerate, nginx, gcra, spring, sentinel or
netflix. Everything goes through the public verbs.
"""
