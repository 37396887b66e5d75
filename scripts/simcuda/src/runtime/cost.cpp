#include "cost.h"

#include "card.h"
#include "config.h"

namespace simcuda {

Cost traffic_cost(uint64_t bytes, const char* name) {
  return timed() ? Cost{Part::Compute,
                        card().traffic(static_cast<double>(bytes)), name}
                 : Cost{};
}

Cost copy_cost(Part direction, uint64_t bytes, bool page_locked) {
  const char* name =
      direction == Part::HostToDevice ? "host to device" : "device to host";
  return timed()
             ? Cost{direction, card().copy(direction, bytes, page_locked), name}
             : Cost{};
}

Cost sleep_cost(Time time) {
  return Cost{Part::Compute, time, "torch.cuda._sleep"};
}

}  // namespace simcuda
