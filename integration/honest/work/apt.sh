# Installs packages from files: one without anything, one with a user for its daemon, one with a postinst of our own.
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get -q -y install --no-install-recommends /opt/debs/*.deb >/root/apt.log 2>&1 || { cat /root/apt.log; exit 1; }
grep -i -e '^E:' -e '^W:' -e 'not permitted' -e 'denied' /root/apt.log || echo "no complaint"
hello
uuidgen | tr -d '\n' | wc -c
getent passwd uuidd | cut -d: -f1,6
id -un _agentsbx
stat --format '%n %U:%G %a' /var/log/agentsbx-daemon /var/lib/agentsbx-daemon /usr/lib/agentsbx-daemon/daemon
agentsbx-daemon
dpkg -s agentsbx-daemon hello uuid-runtime | grep ^Status
apt-get -q -y purge agentsbx-daemon hello >/root/purge.log 2>&1 || { cat /root/purge.log; exit 1; }
ls /usr/bin/hello /usr/bin/agentsbx-daemon 2>/dev/null || echo purged
dpkg --audit
