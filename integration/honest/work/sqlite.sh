# A database with a write-ahead log and mapped memory, written by four processes at once.
set -e
cd "$HOME"
sqlite3 data.db 'PRAGMA journal_mode=WAL; PRAGMA mmap_size=268435456; CREATE TABLE t (n INTEGER, who TEXT);'
for who in a b c d; do
    seq 250 | sed "s/.*/INSERT INTO t VALUES (&, '$who');/" | sqlite3 -cmd '.timeout 20000' data.db &
done
wait
sqlite3 data.db 'PRAGMA mmap_size=268435456; SELECT count(*), sum(n), count(DISTINCT who) FROM t; PRAGMA integrity_check;'
sqlite3 data.db '.backup copy.db' 'VACUUM' "SELECT json_extract('{\"a\": 5}', '$.a')"
python3 - <<'END'
import sqlite3
with sqlite3.connect("copy.db") as db:
    db.execute("CREATE VIRTUAL TABLE words USING fts5(text)")
    db.executemany("INSERT INTO words VALUES (?)", [("honest work",), ("other",)])
    print("fts", db.execute("SELECT text FROM words WHERE words MATCH 'honest'").fetchall(), db.execute("SELECT count(*) FROM t").fetchone())
END
