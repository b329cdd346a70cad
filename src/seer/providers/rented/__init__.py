"""Machines that are rented for one sandbox: what Modal and RunPod have in common.

A provider brings a `Rental` (one rented machine: is it there, how did it end, end it) and a link to
it. Modules without an underscore run on the rented machine and use the standard library only:

    rental_monitor.py  its first process: ends the rental when it is no longer needed

Those with one run in the controller:

    _rental.py         what a provider must be able to do with a rented machine; the reasons for
                       its end; waiting for capacity
    _host.py           a rented machine as a host: its monitor's program and settings, heartbeats,
                       the machine on it, its release
"""
