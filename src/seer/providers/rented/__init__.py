"""Machines that are rented for one sandbox: the parts that Modal and RunPod share.

A provider supplies a `Rental` (one rented machine: check it, end it, and say how it ended) and a
link to it. Modules without an underscore run on the rented machine and use the standard library
only:

    rental_monitor.py  its first process, which ends the rental when it is no longer needed

Modules with an underscore run in the controller:

    _rental.py         what a provider must implement for a rented machine; the reasons for
                       its end; waiting for capacity
    _host.py           a rented machine as a host: its monitor's program and settings, heartbeats,
                       the machine on it, its release
"""
