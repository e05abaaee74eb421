# GNU hello as its authors released it: configure, make, its own tests, install.
set -e
mkdir "$HOME/build" "$HOME/installed"
cd "$HOME/build"
tar -xf /opt/sources/hello_*.orig.tar.gz --strip-components 1
./configure --quiet --prefix="$HOME/installed" >configure.log
make -s -j4 >make.log 2>&1
make -s check >check.log 2>&1 || { tail -50 check.log; exit 1; }
grep -e '^# PASS' -e '^# FAIL' check.log
make -s install >install.log 2>&1
"$HOME/installed/bin/hello" --greeting 'built and run'
