"""Machines on hosts elsewhere: everything that providers of them have in common.

A provider brings a `Link` (run a program there, open a stream to a socket there) and says which
hosts there are; see `RemoteProvider`. Modules without an underscore run on the host, from a copy,
and use the standard library only:

    bootstrap.sh   the first contact: find a Python, unpack the kit
    host.py        start, find, list and end machines there; pick GPUs
    porter.py      one per machine: holds its connections while the controller cannot be heard
    frames.py      numbered frames and streams, for both ends; does no input or output

Those with one run in the controller:

    _link.py       what a provider must be able to do
    _kit.py        the copy that a host gets
    _host.py       one host: requests to `host.py`, files pushed there
    _session.py    the controller's end of a porter: streams that survive cuts
    _machine.py    a machine in terms of a session
    _relay.py      a socket of this host that leads to one in the machine
    _provider.py   start, find and list in terms of hosts
"""
