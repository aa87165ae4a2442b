package capture

import (
	"time"

	"github.com/roxie-rdma/roxie/verbs"
)

// Attach has the device that will be opened on ifname with cfg write its frames to file, and overwrites
// one that is there. Without a name of a file it does nothing, and the Writer is nil, which may be
// closed. Close it behind the device.
func Attach(cfg *verbs.Config, file, ifname string) (*Writer, error) {
	if file == "" {
		return nil, nil
	}
	w, err := Create(file, ifname)
	if err != nil {
		return nil, err
	}
	cfg.Capture = func(dir verbs.Direction, shard int, t time.Time, head, tail []byte) {
		w.Frame(uint32(dir), shard, t, head, tail)
	}
	return w, nil
}
