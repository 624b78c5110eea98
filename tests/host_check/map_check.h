// The maps of tiles that kernels of processors make where a mask reads tensors, beside masks that are written a second time by hand.
#pragma once

namespace flashjit {

// How many tiles are wrong; each is printed.
int check_maps();

}  // namespace flashjit
