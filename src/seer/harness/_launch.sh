#!/bin/sh
# Starts a vendor's agent. The SDK calls this in place of the vendor's program; what to run, and in
# which environment, stands in the file beside it.
here=$(dirname "$0")
exec "$here/python" -I -S "$here/launch.py" "$@"
