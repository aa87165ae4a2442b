package qemu

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// The recipe of the image. A change of it makes a new image.
const (
	// imageFormat is counted up when the way of building changes.
	imageFormat = 1

	// kernelPackage depends on the newest kernel of the long-term series that the tests know;
	// otherKernel is taken where it does not exist. (The cloud flavours lack rdma_rxe.)
	kernelPackage = "linux-image-6.12-amd64"
	otherKernel   = "linux-image-amd64"

	libDir = "usr/lib/x86_64-linux-gnu"
)

// packages are the ones whose files go into the image. Libraries come by themselves.
var packages = []string{
	"busybox-static",
	"dash", // busybox's own shell takes its applets for ip and others
	"ethtool",
	"ibverbs-providers",
	"ibverbs-utils",
	"iproute2",
	"libgcc-s1",
	"perftest",
	"rdmacm-utils",
	"tcpdump",
	"zlib1g",
}

// programs are the files wanted of them, as patterns of paths without the leading slash. Each
// pattern must match.
var programs = []string{
	"usr/bin/busybox",
	"usr/bin/dash",
	"usr/bin/ib*_*pingpong",
	"usr/bin/ibv_devinfo",
	"usr/bin/ib_*_bw",
	"usr/bin/ib_*_lat",
	"usr/bin/mckey",
	"usr/bin/rdma*",
	"usr/bin/rping",
	"usr/bin/rstream",
	"usr/bin/tcpdump",
	"usr/bin/ucmatose",
	"usr/bin/udaddy",
	"usr/bin/udpong",
	"usr/bin/ip",
	"usr/bin/rdma",
	"usr/sbin/tc",
	"usr/sbin/ethtool",
	"etc/libibverbs.d/rxe.driver",
	libDir + "/libibverbs/librxe-rdmav*.so",
	libDir + "/libgcc_s.so.1", // glibc opens it when a thread is cancelled
}

// modules are the kernel modules wanted, without those that they depend on.
var modules = []string{
	"virtio_pci", "virtio_console", "virtio_net", "virtio_rng",
	"rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad",
	"8021q", "veth", "dummy",
	"sch_netem", "sch_ingress", "ifb", "cls_matchall", "cls_u32", "act_mirred",
	"xsk_diag",
	"ib_srpt", "target_core_mod", "target_core_iblock", "target_core_file", "null_blk", "brd",
	"configfs",
	"crc32_generic", "crc32-pclmul", "crc32c_generic", "crc32c-intel",
}

// bootModules are loaded by the agent before it answers.
var bootModules = []string{
	"virtio_pci", "virtio_console", "virtio_net", "virtio_rng",
	"rdma_rxe", "ib_uverbs", "rdma_ucm",
}

// textFiles are made here.
var textFiles = map[string]string{
	"etc/passwd":           "root:x:0:0:root:/root:/bin/sh\n",
	"etc/group":            "root:x:0:\n",
	"etc/hosts":            "127.0.0.1 localhost\n",
	"etc/nsswitch.conf":    "hosts: files\n",
	"etc/iproute2/.exists": "",
}

// directories are made empty.
var directories = []string{
	"dev", "proc", "sys", "run", "tmp", "root", "mnt", "var",
}

// recipe is what an image is made from, as a name for it.
func recipe() string {
	h := sha256.New()
	fmt.Fprintln(h, imageFormat, kernelPackage, otherKernel)
	for _, list := range [][]string{packages, programs, modules, directories} {
		fmt.Fprintln(h, strings.Join(list, " "))
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}
