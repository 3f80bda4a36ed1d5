#include <cuda_bf16.h>

#include <cmath>
#include <random>

#include "cuda/plant.h"

namespace sluice::impl::bench {
namespace {

__device__ uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}

// A number from the normal distribution for each place.
__device__ float normal_at(uint32_t seed, uint32_t row, uint32_t column) {
  const uint32_t a = mixed(mixed(seed + row * 0x9e3779b9u) + column), b = mixed(a + 0x85ebca6bu);
  const float u = (static_cast<float>(a >> 8) + 0.5f) * 0x1p-24f;
  const float v = static_cast<float>(b >> 8) * 0x1p-24f;
  return sqrtf(-2 * logf(u)) * cospif(2 * v);
}

// Row t is that of centre[t] plus noise[t] times its own numbers.
__global__ void plant(__nv_bfloat16* rows, int64_t stride, int64_t d, const int32_t* centre,
                      const float* noise, uint32_t seed) {
  const int64_t t = blockIdx.x;
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    const auto column = static_cast<uint32_t>(i);
    float x = normal_at(seed, static_cast<uint32_t>(centre[t]), column);
    if (noise[t] > 0) x += noise[t] * normal_at(seed + 1, static_cast<uint32_t>(t), column);
    rows[t * stride + i] = __float2bfloat16_rn(x);
  }
}

// The same in the coordinates of a basis, (rank, d). Noise of `rest` of
// the norm is added in all dimensions.
__global__ void plant_near(__nv_bfloat16* rows, int64_t stride, int64_t d, const int32_t* centre,
                           const float* noise, uint32_t seed, const float* vectors, int rank,
                           float rest) {
  extern __shared__ float along[];
  const int64_t t = blockIdx.x;
  for (int k = static_cast<int>(threadIdx.x); k < rank; k += static_cast<int>(blockDim.x)) {
    const auto column = static_cast<uint32_t>(k);
    along[k] = normal_at(seed, static_cast<uint32_t>(centre[t]), column);
    if (noise[t] > 0) along[k] += noise[t] * normal_at(seed + 1, static_cast<uint32_t>(t), column);
  }
  __syncthreads();
  const float size = rest * sqrtf(static_cast<float>(rank) / static_cast<float>(d));
  for (int64_t i = threadIdx.x; i < d; i += blockDim.x) {
    float x = size * normal_at(seed + 2, static_cast<uint32_t>(t), static_cast<uint32_t>(i));
    for (int k = 0; k < rank; ++k) x += along[k] * vectors[k * d + i];
    rows[t * stride + i] = __float2bfloat16_rn(x);
  }
}

void fill(cuda::Context& context, const Tensor& rows, const std::vector<int32_t>& centre,
          const std::vector<float>& noise, uint32_t seed, const Near& near = {}) {
  const auto bytes = static_cast<int64_t>(centre.size() * sizeof(int32_t));
  void* centres = context.allocate(bytes);
  void* noises = context.allocate(bytes);
  context.send(centre.data(), centres, bytes);
  context.send(noise.data(), noises, bytes);
  const auto n = static_cast<unsigned>(rows.rows());
  auto* to = reinterpret_cast<__nv_bfloat16*>(rows.bytes());
  const int64_t d = rows.row_elements();
  if (near.basis == nullptr) {
    plant<<<n, 256, 0, context.stream()>>>(to, rows.row_stride(), d,
                                           static_cast<const int32_t*>(centres),
                                           static_cast<const float*>(noises), seed);
  } else {
    const auto vectors = near.basis->vectors();
    void* there = context.allocate(static_cast<int64_t>(vectors.size_bytes()));
    context.send(vectors.data(), there, static_cast<int64_t>(vectors.size_bytes()));
    const auto rank = static_cast<int>(near.basis->rank());
    plant_near<<<n, 256, static_cast<size_t>(rank) * sizeof(float), context.stream()>>>(
        to, rows.row_stride(), d, static_cast<const int32_t*>(centres),
        static_cast<const float*>(noises), seed, static_cast<const float*>(there), rank, near.rest);
    context.free(there);
  }
  cuda::check_launch("plant");
  context.free(centres);
  context.free(noises);
}

}  // namespace

std::shared_ptr<const SelectionBasis> random_basis(int64_t rank, int64_t d) {
  std::mt19937 random(17);
  std::normal_distribution<double> normal;
  std::vector<double> vectors(static_cast<size_t>(rank * d));
  for (int64_t i = 0; i < rank; ++i) {
    double* v = vectors.data() + i * d;
    for (int64_t k = 0; k < d; ++k) v[k] = normal(random);
    const auto dot = [&](const double* w) {
      double sum = 0;
      for (int64_t k = 0; k < d; ++k) sum += v[k] * w[k];
      return sum;
    };
    for (int64_t j = 0; j < i; ++j) {
      const double* w = vectors.data() + j * d;
      const double along = dot(w);
      for (int64_t k = 0; k < d; ++k) v[k] -= along * w[k];
    }
    const double norm = std::sqrt(dot(v));
    for (int64_t k = 0; k < d; ++k) v[k] /= norm;
  }
  return std::make_shared<SelectionBasis>(rank, d,
                                          std::vector<float>(vectors.begin(), vectors.end()));
}

std::vector<uint8_t> plant_rows(cuda::Context& context, const Tensor& rows, int64_t n_reps,
                                Spread spread, const Near& near) {
  constexpr double kUnlike = 0.025;
  std::mt19937 random(11);
  std::uniform_real_distribution<float> noise_of(0.1f, 0.86f);
  std::uniform_real_distribution<double> uniform;
  const int64_t n = rows.rows();
  const double share = static_cast<double>(n_reps) / static_cast<double>(n);
  std::vector<int32_t> centres, centre;
  std::vector<float> noise;
  std::vector<uint8_t> inherited;
  const auto any_centre = [&] {
    const double u = uniform(random);
    const double place = spread == Spread::kEven ? u : u * u * u * u;
    return centres[static_cast<size_t>(place * static_cast<double>(centres.size()))];
  };
  for (int64_t t = 0; t < n; ++t) {
    const bool is_new = t == 0 || t * n_reps / n > (t - 1) * n_reps / n;
    const double unlike = is_new ? kUnlike : kUnlike * share / (1 - share);
    inherited.push_back(is_new != (uniform(random) < unlike) ? 1 : 0);
    if (is_new) centres.push_back(static_cast<int32_t>(t));
    centre.push_back(is_new ? static_cast<int32_t>(t) : any_centre());
    noise.push_back(is_new ? 0 : noise_of(random));
  }
  fill(context, rows, centre, noise, 1, near);
  return inherited;
}

void fill_normal(cuda::Context& context, const Tensor& rows, uint32_t seed) {
  std::vector<int32_t> centre;
  for (int64_t t = 0; t < rows.rows(); ++t) centre.push_back(static_cast<int32_t>(t));
  fill(context, rows, centre, std::vector<float>(centre.size()), seed);
}

}  // namespace sluice::impl::bench
