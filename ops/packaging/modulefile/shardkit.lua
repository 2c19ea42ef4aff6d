-- Lmod module of shardkit; PREFIX is where `make install PREFIX=...` put it
help([[Tools for the checkpoints of large language models trained with 3D parallelism; each has --help and a man page.]])
whatis("Name: shardkit")
whatis("Description: train, inspect, verify, reshape, merge, convert, export and back up 3D-parallel checkpoints")
local prefix = os.getenv("SHARDKIT_PREFIX") or pathJoin(os.getenv("HOME"), ".local")
prepend_path("PATH", pathJoin(prefix, "bin"))
prepend_path("MANPATH", pathJoin(prefix, "share/man"))
-- bash-completion and zsh look here.
prepend_path("XDG_DATA_DIRS", pathJoin(prefix, "share"))
prepend_path("FPATH", pathJoin(prefix, "share/zsh/site-functions"))
setenv("SHARDKIT_OPS", pathJoin(prefix, "share/shardkit/ops"))
