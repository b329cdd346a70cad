#!/bin/sh
# An SDK starts this instead of a vendor's program; the rest is in launch.py.
here=$(dirname "$0")
exec "$here/python" -I -S "$here/launch.py" "$@"
