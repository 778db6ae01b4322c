# The base of our own images where Debian's image can be pulled; images/base/Dockerfile is the other way.
ARG DEBIAN
FROM ${DEBIAN}
LABEL infera.serving.image=base
ARG PACKAGES
RUN apt-get -q update \
 && DEBIAN_FRONTEND=noninteractive apt-get -qy dist-upgrade \
 && DEBIAN_FRONTEND=noninteractive apt-get -qy install --no-install-recommends ${PACKAGES} \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
ENV LC_ALL=C.UTF-8 PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
CMD ["/bin/sh"]
