// sluice._core.Attention, on arrays of NumPy or of any library that speaks DLPack, and where it
// runs.

#include "bind.h"

namespace sluice::python {
namespace {

using Rows = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using OutRows = nb::ndarray<float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
// In the memory of any device, of any dtype, with any strides.
using DeviceRows = nb::ndarray<nb::ro, nb::ndim<3>>;
using DeviceOutRows = nb::ndarray<nb::ndim<3>>;

void make_device(AttentionDevice* place, const nb::dict& given) {
  Options options(given);
  Device device = Device::kCpu;
  DType dtype = DType::kF32;
  int ordinal = 0;
  std::optional<uintptr_t> stream;
  options.take_word<Device>("device", kDevices, device);
  options.take_word<DType>("dtype", kDTypes, dtype);
  options.take("ordinal", ordinal);
  options.take("stream", stream);
  options.finish();
  if (!stream) {
    if (ordinal != 0) throw Error("a stream says on which GPU it is", "give stream too");
    new (place) AttentionDevice(device, dtype);
    return;
  }
  if (device != Device::kCuda) throw Error("only a GPU has streams", "device=\"cuda\"");
  new (place) AttentionDevice(
      CudaStream{.device = ordinal, .stream = reinterpret_cast<void*>(*stream)}, dtype);
}

void use_stream(AttentionDevice& device, uintptr_t stream) {
  device.use_stream(reinterpret_cast<void*>(stream));
}

void make(Attention* place, const AttentionDevice& device, const nb::dict& given) {
  Options options(given);
  AttentionShape shape;
  options.take("n_heads", shape.n_heads);
  options.take("n_kv_heads", shape.n_kv_heads);
  options.take("head_dim", shape.head_dim);
  options.take("capacity", shape.capacity);
  options.take("scale", shape.scale);
  if (given.contains("plan")) {
    const auto plan = nb::cast<Plan>(given["plan"]);
    nb::object taken;
    int64_t layer = 0;
    options.take("plan", taken);
    options.take("layer", layer);
    options.finish();
    new (place) Attention(shape, plan, layer, device);
    return;
  }
  const AttentionOptions attention = attention_options(options);
  options.finish();
  new (place) Attention(shape, attention, device);
}

void append(Attention& attention, const Rows& q, const Rows& k, const Rows& v, const OutRows& out) {
  const nb::gil_scoped_release released;
  attention.append({q.data(), q.size()}, {k.data(), k.size()}, {v.data(), v.size()},
                   {out.data(), out.size()});
}

// Throws Error for an array that is not (n, heads, head_dim) on the attention's device in its
// dtype. Returns the stride of tokens.
template <typename Array>
int64_t checked_stride(const Attention& attention, const Array& rows, int64_t n, int64_t heads) {
  const AttentionDevice& device = attention.device();
  const int64_t head_dim = attention.shape().head_dim;
  const bool is_cuda = device.kind() == Device::kCuda;
  if (rows.device_type() != (is_cuda ? nb::device::cuda::value : nb::device::cpu::value) ||
      (is_cuda && rows.device_id() != device.ordinal()))
    throw Error("a tensor is not on the device of this attention",
                is_cuda ? "cuda:" + std::to_string(device.ordinal()) : "the CPU's memory");
  const nb::dlpack::dtype expected = device.dtype() == DType::kBF16 ? nb::dlpack::dtype{4, 16, 1}
                                                                    // bfloat16
                                                                    : nb::dtype<float>();
  if (rows.dtype() != expected)
    throw Error("a tensor has another dtype than this attention", word_of(kDTypes, device.dtype()));
  if (static_cast<int64_t>(rows.shape(0)) != n || static_cast<int64_t>(rows.shape(1)) != heads ||
      static_cast<int64_t>(rows.shape(2)) != head_dim)
    throw Error("q, k, v and out are no tokens of this attention",
                "(n, n_heads, head_dim) for q and out, (n, n_kv_heads, head_dim) for k and v");
  if ((head_dim > 1 && rows.stride(2) != 1) || (heads > 1 && rows.stride(1) != head_dim))
    throw Error("the heads of a token do not follow each other in memory", "contiguous tensors");
  return n > 1 ? rows.stride(0) : 0;
}

void append_rows(Attention& attention, const DeviceRows& q, const DeviceRows& k,
                 const DeviceRows& v, const DeviceOutRows& out) {
  const AttentionShape& shape = attention.shape();
  const auto n = static_cast<int64_t>(q.shape(0));
  const DeviceTokens tokens{.n = n,
                            .q = q.data(),
                            .k = k.data(),
                            .v = v.data(),
                            .out = out.data(),
                            .q_stride = checked_stride(attention, q, n, shape.n_heads),
                            .k_stride = checked_stride(attention, k, n, shape.n_kv_heads),
                            .v_stride = checked_stride(attention, v, n, shape.n_kv_heads),
                            .out_stride = checked_stride(attention, out, n, shape.n_heads)};
  const nb::gil_scoped_release released;
  attention.append(tokens);
}

}  // namespace

void bind_attention(nb::module_& core) {
  nb::class_<AttentionDevice>(core, "AttentionDevice", "What attentions on one device share.")
      .def("__init__", &make_device, nb::arg("options"))
      .def("use_stream", &use_stream, nb::arg("stream"))
      .def_prop_ro("kind",
                   [](const AttentionDevice& device) { return word_of(kDevices, device.kind()); })
      .def_prop_ro("ordinal", &AttentionDevice::ordinal)
      .def_prop_ro("dtype",
                   [](const AttentionDevice& device) { return word_of(kDTypes, device.dtype()); });
  nb::class_<AttentionReads>(core, "AttentionReads", "How many keys an attention has read.")
      .def_prop_ro("keys_read", &AttentionReads::keys_read)
      .def_prop_ro("by_head", &AttentionReads::by_head);
  nb::class_<Attention>(core, "Attention", "The keys and values of one layer of one sequence.")
      .def("__init__", &make, nb::arg("device"), nb::arg("options"))
      .def("append", &append, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out").noconvert())
      .def("append_rows", &append_rows, nb::arg("q").noconvert(), nb::arg("k").noconvert(),
           nb::arg("v").noconvert(), nb::arg("out").noconvert())
      .def_prop_ro("is_dense", &Attention::is_dense)
      .def_prop_ro("length", &Attention::length)
      .def_prop_ro("keys_read", &Attention::keys_read)
      .def_prop_ro("keys_read_by_head", &Attention::keys_read_by_head)
      .def("reads", &Attention::reads)
      .def("clear", &Attention::clear);
}

}  // namespace sluice::python
