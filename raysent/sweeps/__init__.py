"""Many runs on Ray Tune: searched by samplers, stopped early by schedulers, within a budget, resumed from a journal.

- `space`: a search-space file, checked; its domains and a run for each trial
- `journal`: the append-only record that a sweep is resumed from
- `trial`, `ranking`: one trial, and which trial is best
- `samplers`, `schedulers`, `trackers`: what to try next, which trials continue, who follows; `components` finds them
- `controller`: these together, without Ray
- `cost_tracker`: the ledger of a running sweep
- `machines`, `fleet`: the machines of a sweep, how trials share them, and those that come and go
- `trainables`, `ray_tune`: one trial on Ray, and the controller on Ray Tune
- `record`: `sweep.json` and `trials.csv`
- `remaining`: how long training still takes
- `fitting`: settings chosen for the text, the machine and the time
- `driver`: the text that trials share, the space checked against it; start and resume
"""

import lazy_loader

# The public names are listed in `__init__.pyi` and imported at their first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
