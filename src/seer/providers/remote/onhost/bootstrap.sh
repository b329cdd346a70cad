# First contact with a host: find a Python on it, and check or install its copy of Seer's code.
# Run as: sh -c "$(this file)" seer MODE ROOT ARCHIVE PYTHON
# MODE look: report what the host has. MODE unpack: read the code archive, a gzipped tar, from standard input.
# Prints one line: PYTHON VERSION HAS_ARCHIVE ROOT, separated by tabs.
set -eu
umask 077
mode=$1 root=$2 archive=$3 wanted=$4
case $root in
  '') root=$HOME/.seer ;;
  '~/'*) root=$HOME/${root#'~/'} ;;
esac

python=
for candidate in ${wanted:+"$wanted"} "$root/python/bin/python3" python3 python3.14 python3.13 python3.12 python3.11; do
  if found=$(command -v "$candidate" 2>/dev/null) &&
    version=$("$found" -I -S -c 'import sys; print("%d.%d.%d" % sys.version_info[:3]); sys.exit(sys.version_info < (3, 11))' 2>/dev/null); then
    python=$found
    break
  fi
  # If a Python was requested by name, try no other.
  if [ -n "$wanted" ]; then break; fi
done
if [ -z "$python" ]; then
  printf 'no python\n'
  exit 0
fi

has=0
[ -d "$root/kits/$archive" ] && has=1
if [ "$mode" = unpack ] && [ $has = 0 ]; then
  mkdir -p "$root/kits"
  draft=$(mktemp -d "$root/kits/.draft-XXXXXX")
  trap 'rm -rf "$draft"' EXIT
  tar -xzf - -C "$draft"
  # Another process may have installed the same copy first. `mv` would then move this copy into it.
  [ -d "$root/kits/$archive" ] || mv "$draft" "$root/kits/$archive" 2>/dev/null || [ -d "$root/kits/$archive" ]
  has=1
fi
printf '%s\t%s\t%s\t%s\n' "$python" "$version" "$has" "$root"
