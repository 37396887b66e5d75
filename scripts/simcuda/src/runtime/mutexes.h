// Which threads hold mutexes: pthread's functions are counted on their way.
#pragma once

namespace simcuda {

// How many the calling thread holds, of the whole process's.
int mutexes_held();

}  // namespace simcuda
