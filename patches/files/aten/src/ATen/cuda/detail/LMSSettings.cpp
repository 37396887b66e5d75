#include <ATen/cuda/detail/LMSSettings.h>

#include <pthread.h>

namespace at::cuda::lms {

Settings& Settings::get() {
  static auto* settings = new Settings(); // leaked: read until the very end
  return *settings;
}

Settings::Settings() {
  pthread_atfork(nullptr, nullptr, [] {
    Settings::get().forked_.store(true);
    Settings::get().enabled_.store(false);
    Settings::get().active_.store(false);
  });
}

} // namespace at::cuda::lms
