// The results' shapes come from the operator's meta kernel; the results are
// allocated, by the real allocator, before the computation is queued. The
// queued work knows addresses only: the tensors may be freed, or paged out, as
// soon as the host goes on, as with a kernel on a card.
#include "async.h"

#include <c10/cuda/CUDAException.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "../simcuda.h"
#include "compute.h"
#include "outputs.h"
#include "shapes.h"
#include "values.h"

namespace simcuda {
namespace {

// Operators whose shapes depend on data, and those whose CPU kernel gives other
// shapes than the CUDA kernel that the meta kernel describes.
const std::set<std::string>& synchronous() {
  static const std::set<std::string> names = {
      "aten::_embedding_bag",   "aten::_embedding_bag_forward_only",
      "aten::_index_put_impl_", "aten::_unique2",
      "aten::masked_select",    "aten::nonzero",
  };
  return names;
}

// One queued computation.
struct Work {
  std::string name;
  Computation computation;
  Aliases aliases;
  // What to store: number of the result, and the memory that waits for it.
  std::vector<std::pair<size_t, c10::IValue>> targets;

  void run();
};

void store(const at::Tensor& from, const at::Tensor& to) {
  if (from.numel() == 0 && to.numel() > 0 && from.dim() == to.dim()) {
    return;  // the CPU's batch norm saves no statistics in evaluation
  }
  TORCH_CHECK(
      from.sizes() == to.sizes() && from.scalar_type() == to.scalar_type(),
      "the result is ", from.scalar_type(), from.sizes(),
      " but its meta kernel said ", to.scalar_type(), to.sizes());
  if (from.strides() == to.strides() && from.numel() > 0) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), extent(from));
  } else {
    BelowEverything guard;
    const_cast<at::Tensor&>(to).copy_(from);
  }
}

void Work::run() {
  try {
    computation.run();
    for (const auto& [i, target] : targets) {
      std::vector<at::Tensor> from;
      std::vector<at::Tensor> to;
      for_each_tensor(computation.results()[i],
                      [&](const at::Tensor& t) { from.push_back(t); });
      for_each_tensor(target, [&](const at::Tensor& t) { to.push_back(t); });
      TORCH_CHECK(from.size() == to.size(),
                  "its meta kernel said another number of results");
      for (size_t k = 0; k < from.size(); ++k) {
        store(from[k], to[k]);
      }
    }
  } catch (const c10::Error& error) {
    throw std::runtime_error(name + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    throw std::runtime_error(name + ": " + error.what());
  }
}

void queue(std::unique_ptr<Work> work, const c10::cuda::CUDAStream& stream) {
  const SimcudaTask task = {
      [](void* context) { static_cast<Work*>(context)->run(); },
      [](void* context) { delete static_cast<Work*>(context); },
      work.release()};
  C10_CUDA_CHECK(simcudaLaunch(stream.stream(), stream.device_index(), task));
}

}  // namespace

bool simulate_async(const c10::OperatorHandle& op,
                    c10::ArrayRef<c10::IValue> arguments,
                    const c10::cuda::CUDAStream& stream,
                    torch::jit::Stack& results) {
  static const bool async = simcudaIsAsync() != 0;
  const auto& schema = op.schema();
  const bool is_queued =
      async || simcudaIsCapturing(stream.stream(), stream.device_index()) != 0;
  if (!is_queued || synchronous().count(schema.name()) != 0 ||
      answers_host(schema)) {
    return false;
  }
  Shapes shapes;
  if (!is_plain_in_place(schema)) {
    if (!find_shapes(op, arguments, shapes)) {
      return false;
    }
    resize_written(schema, arguments, shapes.arguments);
  }
  auto work = std::make_unique<Work>(
      Work{c10::toString(op.operator_name()),
           Computation(op, arguments, stream.device(), /*own=*/true),
           {},
           {}});
  for (size_t i = 0; i < schema.returns().size(); ++i) {
    if (const c10::IValue* same = find_aliased(schema, i, arguments)) {
      results.push_back(*same);
      continue;
    }
    results.push_back(
        map_tensors(shapes.results[i], [&](const at::Tensor& shape) {
          return empty_like_on(shape, stream.device());
        }));
    const auto alias = [&](const at::Tensor& t) { return work->aliases.of(t); };
    work->targets.emplace_back(i, map_tensors(results.back(), alias));
  }
  queue(std::move(work), stream);
  return true;
}

}  // namespace simcuda
