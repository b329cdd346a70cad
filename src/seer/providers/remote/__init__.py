"""Machines on hosts elsewhere: everything that providers of them have in common.

A provider brings a `Link` (run a program there, open a stream to a socket there) and says which
hosts there are; see `RemoteProvider`. The modules in `onhost` run on the host, from a copy:

    bootstrap.sh   the first contact: find a Python, unpack the code archive
    operations.py   start, find, list and end machines there
    store.py       copies of the controller's files
    specs.py       a machine's spec as plain data
    node.py        the host's end of a machine on another node
    session_server.py  one per machine: keeps its connections while the network is down
    pump.py        a socket on standard streams, where forwarding is forbidden
    launched.py    machines that a launcher starts on another node, with
    head.py        what runs the launcher, and
    multiplexer.py wires over the launcher's standard streams
    frames.py      numbered frames, for both ends; does no input or output

Those in `controller` run in the controller:

    _link.py       what a provider must be able to do
    _kit.py        the copy that a host gets
    _host.py       one host: requests to `operations.py`, files pushed there
    _session.py    the controller's end of a session server: streams that survive cuts
    _machine.py    a machine in terms of a session
    _provider.py   start, find and list in terms of hosts
    _known_hosts.py hosts that were used, for listings of later processes
"""
