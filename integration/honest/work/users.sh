# Makes users and groups, sets a password, and becomes them in each of the ways that there are.
set -e
adduser --quiet --disabled-password --gecos '' worker
addgroup --quiet crew
adduser --quiet worker crew
echo 'worker:secret' | chpasswd
passwd --status worker | cut -d' ' -f1,2
id worker | sed 's/[0-9]*(//g; s/)//g'
stat --format '%U:%G %F' /home/worker
su worker -c 'echo "su $(id -un) $HOME"'
su - worker -c 'echo "su - $(id -un) $PWD"'
runuser -u worker -- sh -c 'echo "runuser $(id -un)"'
setpriv --reuid worker --regid worker --init-groups sh -c 'echo "setpriv $(id -Gn)"'
setpriv --reuid worker --regid worker --clear-groups --inh-caps=-all sh -c 'cat /etc/shadow' 2>/dev/null || echo "worker reads no shadow"
sudo -u worker sh -c 'echo "sudo $(id -un)"'
# Not by chroot: strict does not let it.
chroot / true 2>&1 | sed "s/^chroot: //"
python3 -c 'import os; os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000); print("python", os.getresuid())'
usermod --shell /bin/sh --append --groups users worker
chage --maxdays 90 worker
install -o worker -g crew -m 640 /dev/null /srv/owned
stat --format '%U:%G %a' /srv/owned
chown user:user /srv/owned && chmod 2640 /srv/owned && stat --format '%U:%G %a' /srv/owned
touch /home/user/of-root && mv /home/user/of-root /home/worker/ && rm /home/worker/of-root
kill_test=$(runuser -u worker -- sh -c 'sleep 100 >/dev/null & echo $!')
kill "$kill_test" && echo "killed another's process"
deluser --quiet --remove-home worker 2>/dev/null
delgroup --quiet crew
getent passwd worker || echo gone
