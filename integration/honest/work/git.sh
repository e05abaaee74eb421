# A repository: history, branches, a rebase, merges, clones by path and by URL, a push, a worktree, collection.
set -e
cd "$HOME"
export GIT_AUTHOR_NAME=Test GIT_AUTHOR_EMAIL=test@invalid GIT_COMMITTER_NAME=Test GIT_COMMITTER_EMAIL=test@invalid
git init -q -b main origin
cd origin
for n in 1 2 3; do
    echo "line $n" >>file
    mkdir -p "dir$n"
    echo "$n" >"dir$n/file"
    git add .
    git commit -q -m "commit $n"
done
git checkout -q -b topic HEAD~1
echo topic >topic
git add topic
git commit -q -m 'on topic'
git rebase -q main
git log --format=%s | tr '\n' '|'
echo
git checkout -q main
git merge -q --no-ff -m merged topic
cd ..
git clone -q --no-local "file://$HOME/origin" by-url
git clone -q origin by-path
git clone -q --bare origin bare.git
cd by-url
git remote add bare ../bare.git
git checkout -q -b pushed
git mv file renamed
git commit -q -m renamed
git push -q bare pushed
git worktree add -q ../tree topic
git -C ../tree status --short --branch
git stash list
echo dirty >>renamed
git stash -q
git stash pop -q
git status --porcelain
git checkout -q -- renamed
git gc -q --aggressive --prune=now
git fsck --strict 2>&1
git bisect start HEAD HEAD~3 >bisect.log
git bisect reset 2>>bisect.log
git diff --stat HEAD~1 | tail -1
git -C ../bare.git log --format=%s -1 pushed
git archive HEAD | tar -t | sort | tr '\n' ' '
echo
