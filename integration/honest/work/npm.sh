# Installs a package with its dependency from a cache, and one of our own with an addon in C++ that node-gyp builds.
set -e
cp -r /opt/npm "$HOME/.npm"
cp -r /srv/work/node-addon "$HOME/addon"
mkdir "$HOME/app"
cd "$HOME/app"
npm init -y >/dev/null
npm install --offline --no-audit --no-fund --silent fill-range@7.1.1
node -e 'console.log("fill", require("fill-range")(1, 5).join())'
# Links are not installed but linked: the archive is what others would get.
(cd ../addon && npm pack --silent)
npm_config_nodedir=${NODEDIR:-/usr/include/nodejs} npm install --offline --no-audit --no-fund --silent ../addon/agentsbx-addon-1.0.0.tgz
node -e 'const a = require("agentsbx-addon"); console.log("addon", a.add(40, 2), a.sumInThread([1, 2, 3, 4]))'
npm ls --depth 0 --parseable | sed 1d | sort | sed 's,.*/node_modules/,has ,'
npx --offline --no-install agentsbx-hello
