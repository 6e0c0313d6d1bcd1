"""The kill matrix: every fault at every moment of a sweep, and what must be true afterwards.

moments.py   when a fault strikes: found in what the driver writes
faults.py    what goes wrong: small objects that strike a stage
matrix.py    which cells there are, where each runs, and why some make no sense
driver.py    the driver's process: `raysent sweep` under watch
machines.py  the cluster of a stage without Ray: its trials train in the driver's process
store.py     an object store over HTTP that can be told to fail, to be slow, to cut uploads off
stage.py     a run folder, a store, machines and a driver to strike at
cloud.py     machines that are launched through the gate and billed from launch to end, in files
cloud_stage.py   a stage on a cluster that grows
prices.py    spot prices over HTTP, from a source that can go down
priced_stage.py  a stage whose workers are spot machines
verdict.py   what every cell has to end in
ray_start.py     machines of a Ray cluster that `ray start` starts
namespaces.py    two machines of this computer, with processes and networks of their own
"""
