# Compiles classes, packs them, and runs them under each of the collectors.
set -e
mkdir "$HOME/java"
cd "$HOME/java"
javac -d classes /srv/work/java/Honest.java
jar --create --file honest.jar --main-class Honest -C classes .
java -jar honest.jar
for collector in Serial Parallel G1 Z; do
    java -XX:+Use${collector}GC -Xmx256m -cp classes Honest collect
done
java -XX:TieredStopAtLevel=1 /srv/work/java/Honest.java collect
jcmd -l | grep -c sun.tools.jcmd.JCmd
