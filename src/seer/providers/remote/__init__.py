"""Machines on other hosts: the parts that remote providers share.

A provider implements `Link` (run a program on a host, open a stream to a socket there) and names
its hosts; see `RemoteProvider`. The modules in `onhost` run on the host, from a copy:

    bootstrap.sh        the first contact: find a Python, unpack the code archive
    operations.py       start, find, list and end machines; store copies of the controller's files
    session_server.py   one per machine: keeps its connections while the network is down
    frames.py           the numbered frames of a session, for both ends; does no input or output
    pump.py             a socket on standard streams, where the SSH server forbids forwarding
    launched.py         machines that a launcher starts on another node
    launcher_bridge.py  connections through a launcher's standard streams

The modules in `controller` run in the controller:

    _link.py            what a provider must implement
    _code_archive.py    the copy of Seer that a host gets
    _host.py            one host: requests to `operations.py`, files pushed there
    _session.py         the controller's end of a session: streams that survive broken connections
    _machine.py         a machine in terms of a session
    _provider.py        start, find and list in terms of hosts
    _known_hosts.py     hosts that were used, for listings of later processes
"""
