# package.py - a recipe for Spack 1.0 and later; copy it to packages/shardkit/ of your own repository of recipes
#
# There is no archive to fetch. Set `git` to the location of the sources at your site, or run
# `spack dev-build shardkit@main` in a checkout. The built tools need no Python.
from spack_repo.builtin.build_systems.makefile import MakefilePackage

from spack.package import *


class Shardkit(MakefilePackage):
    """Tools for people who train large language models with tensor, pipeline and data parallelism
    and live with the checkpoints: train, inspect, verify, reshape, merge, convert, export, back up."""

    homepage = "https://shardkit.invalid/"
    git = "https://shardkit.invalid/shardkit.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("mpi", default=True, description="Ranks of train talk over MPI, not only over sockets")
    variant("cuda", default=False, description="Kernels for NVIDIA GPUs, of the architectures the Makefile names")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("pkgconfig", type="build")
    depends_on("libarchive")
    depends_on("jansson")
    depends_on("isa-l")
    depends_on("liburing")
    depends_on("hdf5~mpi")
    depends_on("zlib-api")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("zstd")
    # train loads Open MPI or MPICH at run time.
    depends_on("mpi", type="run", when="+mpi")
    depends_on("cuda@13:", when="+cuda")
    depends_on("nccl", when="+cuda")

    conflicts("platform=darwin", msg="io_uring and O_DIRECT are of Linux")

    def build_args(self):
        # hdf5-serial is Debian's name for HDF5. Warnings are errors only for developers of the sources.
        libraries = "libarchive jansson libisal liburing hdf5 zlib libpcre2-8 libzstd libutf8proc"
        args = ["PREFIX=" + str(self.prefix), "PKGS=" + libraries, "WARN=-Wall", "V=1"]
        if self.spec.satisfies("+cuda"):
            args += ["CUDA=1", "CUDA_HOME=" + str(self.spec["cuda"].prefix)]
        else:
            args.append("CUDA=0")
        return args

    def build(self, spec, prefix):
        make("all", *self.build_args())

    def install(self, spec, prefix):
        make("install", *self.build_args())

    def setup_run_environment(self, env):
        env.set("SHARDKIT_OPS", join_path(self.prefix.share, "shardkit", "ops"))
