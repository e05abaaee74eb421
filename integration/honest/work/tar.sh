# Archives with every kind of file that the user may make, packed and unpacked with all that they are.
set -e
mkdir "$HOME/tree" "$HOME/out"
cd "$HOME/tree"
echo text >file
ln file hard
ln -s file soft
ln -s /nowhere dangling
mkfifo pipe
mkdir -p a/b/c
echo deep >a/b/c/deep
printf x | dd of=sparse bs=1 seek=10M status=none
chmod 2755 a
touch -d @1 old
python3 - <<'END'
import os, socket
os.setxattr("file", "user.key", b"value")
socket.socket(socket.AF_UNIX).bind("socket")
END
if [ "$(id -u)" = 0 ]; then
    chown 1234:4321 file
    chown -h 1:2 soft
    chmod 4755 old
fi
cd ..
tar --create --xattrs --xattrs-include='user.*' --sparse --acls --file all.tar.xz --xz tree 2>tar.err
sed 's/^/said: /' tar.err
tar --extract --xattrs --xattrs-include='user.*' --same-owner --same-permissions --file all.tar.xz --directory out
cd out/tree
stat --format '%n %F %a %u:%g %h' file soft pipe a old | sed "s/ $(id -u):$(id -g) / own /"
echo "$(readlink dangling) $(cat a/b/c/deep) $(stat --format %s sparse) $(($(stat --format %b sparse) < 1000)) $(stat --format %Y old)"
python3 -c 'import os; print("xattr", os.getxattr("file", "user.key"))'
cd ../..
cp -a tree copied
diff -r --no-dereference --exclude socket --exclude pipe tree copied && echo same
tar -czf small.tgz tree/a && zcat small.tgz | tar -t | wc -l
