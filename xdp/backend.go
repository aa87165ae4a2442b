package xdp

import "golang.org/x/sys/unix"

// backend stands in for the kernel where there is none: tests join two sockets in plain memory,
// which needs no rights and which the race detector can see.
type backend struct {
	send func(s *Socket) unix.Errno // takes descriptors from the TX ring, answers like sendto
}
