# A rented pod runs this: an SSH server that accepts one key, then the rental monitor.
# The controller generates the pod's host key, so that it knows the key before the first contact.
set -eu
umask 077

give_back() {
  # The rental monitor is not running, so this must end the pod.
  # An image may lack Python or curl.
  url="${RUNPOD_API_BASE_URL:-https://api.runpod.io}/graphql"
  query="{\"query\": \"mutation { podTerminate(input: {podId: \\\"$RUNPOD_POD_ID\\\"}) }\"}"
  post='import os, sys, urllib.request as web
headers = {"authorization": "Bearer " + os.environ["RUNPOD_API_KEY"], "content-type": "application/json"}
web.urlopen(web.Request(sys.argv[1], sys.argv[2].encode(), headers), timeout=30)'
  while :; do
    python3 -I -S -c "$post" "$url" "$query" ||
      curl -sS -H "authorization: Bearer $RUNPOD_API_KEY" -H 'content-type: application/json' -d "$query" "$url" || true
    sleep 5
  done
}
trap give_back EXIT

mkdir -p /run/sshd /etc/ssh /seer/cache
chmod 711 /seer
printf '%s\n' "$SEER_HOST_KEY" >/etc/ssh/seer_host_key
printf '%s\n' "$SEER_CLIENT_KEY" >/etc/ssh/seer_clients
server=$(command -v sshd || true)
if [ -z "$server" ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends openssh-server
  server=$(command -v sshd)
fi
if [ -n "${SEER_PACKAGES:-}" ]; then
  # This runs in the background. The controller waits for it before it needs the packages.
  (apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $SEER_PACKAGES) >/seer/packages.log 2>&1 && touch /seer/packages.done || touch /seer/packages.failed &
fi
"$server" -f /dev/null -h /etc/ssh/seer_host_key -o AuthorizedKeysFile=/etc/ssh/seer_clients \
  -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no -o PermitRootLogin=prohibit-password \
  -o AllowAgentForwarding=no -o AllowTcpForwarding=local -o AllowStreamLocalForwarding=yes -o X11Forwarding=no \
  -o MaxSessions=256 -o StrictModes=no -o PidFile=none
unset SEER_HOST_KEY SEER_CLIENT_KEY
python3 -I -S -c "$SEER_MONITOR" "$SEER_SETTINGS"
